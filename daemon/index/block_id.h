// BlockId: a block of a domain, by its place in the contiguous arrays that all rooms of the daemon
// share.
#pragma once

#include <cstdint>

namespace terrace {

using BlockId = uint32_t;
inline constexpr BlockId kBlockNone = 0xFFFFFFFF;

// Blocks with consecutive ids.
struct BlockRange {
  BlockId first = kBlockNone;
  uint32_t block_count = 0;

  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

}  // namespace terrace
