// PrefixWalk: how far the prefix of a request has been walked, and the spans that say so. A prefix
// ends where a full-attention member has no bytes; it is usable only where every window is
// complete.
//
// THREADING: the store thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "daemon/block/block.h"
#include "daemon/block/group.h"
#include "terrace/protocol.h"

namespace terrace {

// Of the blocks of a request so far: bytes that have to come, and that no tier's queue has yet, by
// TierKind.
using UnqueuedBytes = std::array<uint64_t, protocol::kTierKindCount>;

struct PrefixWalk {
  uint32_t first_position = 0;        // in its prompt, of the request's first key
  uint32_t walked_count = 0;          // keys with every full-attention member present
  uint32_t usable_count = 0;          // the largest prefix at which every window is complete, too
  std::vector<uint32_t> window_runs;  // per windowed member: blocks present without a gap, to here
  uint64_t read_run = 0;              // of the promotions begun for it; see Mover
  BlockId read_on = kBlockNone;       // the last block, if it was below: its chain is read ahead
  BlockId used = kBlockNone;          // the last block that was noted as used
  uint32_t wait_us = 0;               // until all that was promised so far is ready, as predicted
  UnqueuedBytes unqueued{};
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
  if (is_usable) walk->usable_count = walk->walked_count;
  return true;
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
