// Which blocks are hot: those that were used of late and often, as far as a budget of bytes goes,
// each with all that stand before it in its prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/protocol.h"

namespace terrace::tools {

// What the choice needs of a listed block.
struct HotBlock {
  BlockKey key;
  BlockKey parent;
  GroupId group;
  uint64_t idle_ms = 0;
  uint64_t age_ms = 0;
  uint32_t position = 0;
  uint32_t hit_count = 0;
  uint32_t expires_in_s = 0;
  uint8_t priority = 0;
  uint8_t flags = 0;

  static HotBlock Of(const protocol::ListEntry& entry);
};

// (1 + hits) / (idle + 1 minute): uses count, and count less the longer ago the last one is.
double HotnessOf(const HotBlock& block);

struct HotChoice {
  std::vector<HotBlock> blocks;   // as listed: parents before children
  std::vector<uint32_t> parents;  // of each block: its index, or kNoParent of a root
  // The last chosen block of each prompt, of the coldest prompt first. The paths to them have all
  // that is chosen.
  std::vector<uint32_t> tips;
  uint64_t byte_count = 0;
  uint64_t block_count = 0;  // chosen

  static constexpr uint32_t kNoParent = UINT32_MAX;
  // Indexes from the root of its prompt down to `tip`.
  std::vector<uint32_t> PathTo(uint32_t tip) const;
};

// `listed` has parents before children. A block is at least as hot as the hottest that needs it.
// What has lost its parent is of no use to a prompt, and is not chosen.
HotChoice ChooseHot(std::vector<HotBlock> listed, uint64_t bytes_max,
                    const std::function<uint64_t(const GroupId&)>& block_bytes);

}  // namespace terrace::tools
