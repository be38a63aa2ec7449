// PrefixWalk: how far the prefix of a request has been walked, and the spans that say so. A prefix
// ends where a full-attention member has no bytes; it is usable only where every window is
// complete.
//
// THREADING: the store thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "daemon/block/block.h"
#include "daemon/block/group.h"
#include "terrace/check.h"
#include "terrace/protocol.h"

namespace terrace {

// Of the blocks of a request so far: bytes that have to come, and that no tier's queue has yet, by
// TierKind.
using UnqueuedBytes = std::array<uint64_t, protocol::kTierKindCount>;

struct UsableRun {
  uint32_t first = 0, last = 0;  // prefixes of so many blocks, and of all lengths between
};

struct PrefixWalk {
  uint32_t first_position = 0;         // in its prompt, of the request's first key
  uint32_t walked_count = 0;           // keys with every full-attention member present
  uint32_t usable_count = 0;           // the largest prefix at which every window is complete, too
  std::vector<UsableRun> usable_runs;  // all that were; without windows one at most
  std::vector<uint32_t> window_runs;   // per windowed member: blocks present without a gap, to here
  uint64_t read_run = 0;               // of the promotions begun for it; see Mover
  BlockId read_on = kBlockNone;        // the last block, if it was below: its chain is read ahead
  BlockId used = kBlockNone;           // the last block that was noted as used
  uint32_t wait_us = 0;                // until all that was promised so far is ready, as predicted
  UnqueuedBytes unqueued{};

  // To try what comes next: all but the runs behind it.
  PrefixWalk Onwards() const {
    return {.first_position = first_position,
            .walked_count = walked_count,
            .usable_count = usable_count,
            .window_runs = window_runs,
            .wait_us = wait_us,
            .unqueued = unqueued};
  }
};

// The next block of a prefix has bytes of `member_mask`. False if it ends the prefix.
inline bool WalkOn(const Group& group, uint64_t member_mask, PrefixWalk* walk) {
  if ((member_mask & group.full_mask()) != group.full_mask()) return false;
  walk->window_runs.resize(group.windowed_count());
  ++walk->walked_count;
  bool is_usable = true;
  for (const LocalMember& local : group.locals()) {
    if (local.window_blocks == 0) continue;
    uint32_t& run = walk->window_runs[local.window_index];
    run = (member_mask >> local.member) & 1 ? run + 1 : 0;
    is_usable &= run >= std::min(local.WindowBefore(walk->first_position + walk->walked_count),
                                 walk->walked_count);
  }
  if (!is_usable) return true;
  walk->usable_count = walk->walked_count;
  if (!walk->usable_runs.empty() && walk->usable_runs.back().last + 1 == walk->walked_count) {
    ++walk->usable_runs.back().last;
  } else {
    walk->usable_runs.push_back({walk->walked_count, walk->walked_count});
  }
  return true;
}

// WalkOn() of so many blocks, the first ones, that have every local member's bytes.
inline void WalkOnReady(const Group& group, uint32_t block_count, PrefixWalk* walk) {
  TERRACE_CHECK(walk->walked_count == 0, "what is ready at once comes first");
  walk->walked_count = block_count;
  walk->usable_count = block_count;
  walk->usable_runs = {{1, block_count}};
  walk->window_runs.assign(group.windowed_count(), block_count);
}

// The largest usable prefix of at most `block_count` blocks, as it was when they were walked.
inline uint32_t UsableWithin(const PrefixWalk& walk, size_t block_count) {
  const auto beyond =
      std::ranges::upper_bound(walk.usable_runs, block_count, {}, &UsableRun::first);
  if (beyond == walk.usable_runs.begin()) return 0;
  return static_cast<uint32_t>(std::min<size_t>(std::prev(beyond)->last, block_count));
}

// Appends a span, to the last one if that says the same of the blocks before it.
inline void AppendToSpans(protocol::BlockSpan span, std::vector<protocol::BlockSpan>* spans) {
  if (!spans->empty()) {
    protocol::BlockSpan& last = spans->back();
    if (last.state == span.state && last.tier == span.tier &&
        last.first_block + last.block_count == span.first_block) {
      last.block_count += span.block_count;
      last.eta_us = std::max(last.eta_us, span.eta_us);
      return;
    }
  }
  spans->push_back(span);
}

// Cuts spans to the first `block_count` blocks.
inline void TrimSpans(uint32_t block_count, std::vector<protocol::BlockSpan>* spans) {
  while (!spans->empty() && spans->back().first_block >= block_count) spans->pop_back();
  if (spans->empty()) return;
  protocol::BlockSpan& last = spans->back();
  last.block_count = std::min(last.block_count, block_count - last.first_block);
}

}  // namespace terrace
