// Warmer: brings blocks to DRAM before anybody asks for them: some at a time, so that what engines
// ask for meanwhile is not behind gigabytes of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "terrace/protocol.h"
#include "tools/terrace/content/group_opener.h"

namespace terrace::tools {

struct WarmCounts {
  std::array<uint64_t, protocol::kTierKindCount> found{};  // by the fastest tier, before
  uint64_t asked = 0;
  uint64_t promoted = 0;  // in DRAM now, and not before
  uint64_t left = 0;     // found, and not in DRAM: no room, too late, or behind one that is missing
  uint64_t missing = 0;  // nobody has them
  uint64_t promoted_bytes = 0;
};

struct WarmLimits {
  uint64_t bytes_per_second = 0;  // 0: as fast as tiers give
  uint64_t wait_us = 30'000'000;  // for one batch
  uint32_t batch_blocks = 1024;
  uint64_t batch_bytes = uint64_t{256} << 20;
};

class Warmer {
 public:
  // `is_cancelled` may be set by a signal.
  Warmer(GroupOpener& opener, const WarmLimits& limits, const std::atomic<bool>& is_cancelled)
      : opener_(opener), limits_(limits), is_cancelled_(is_cancelled) {}

  // Keys of one group: a chain from the root of a prompt, or flat. False after telling the person
  // why not; cancelled is no failure.
  bool Warm(const OpenedGroup& group, std::span<const BlockKey> keys, bool is_chain);
  // Keys that no group has.
  void AddMissing(uint64_t count);
  const WarmCounts& counts() const { return counts_; }

 private:
  struct Batch {
    const OpenedGroup* group = nullptr;
    std::span<const BlockKey> keys;
    BlockKey parent;
    uint32_t first_position = 0;
    bool is_chain = false;
  };
  // *is_end: the chain ends in it, so that nothing behind it can be brought.
  bool WarmBatch(const Batch& batch, bool* is_end);
  bool Query(const Batch& batch, std::vector<protocol::QueriedBlock>* blocks);
  void Pace(uint64_t byte_count);

  GroupOpener& opener_;
  const WarmLimits limits_;
  const std::atomic<bool>& is_cancelled_;
  WarmCounts counts_;
  uint64_t may_go_on_us_ = 0;
};

// "hbm", "dram", …
std::string_view TierName(protocol::TierKind tier);

}  // namespace terrace::tools
