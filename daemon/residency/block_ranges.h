// Ids of a run that follow each other, as ranges: what the index does it does for a range at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/index/block_id.h"

namespace terrace {

// `visit(BlockRange)` for each, in order.
template <typename Visit>
void ForEachRange(std::span<const BlockId> run, const Visit& visit) {
  for (size_t i = 0; i < run.size();) {
    size_t end = i + 1;
    while (end < run.size() && run[end] == run[end - 1] + 1) ++end;
    visit(BlockRange{run[i], static_cast<uint32_t>(end - i)});
    i = end;
  }
}

}  // namespace terrace
