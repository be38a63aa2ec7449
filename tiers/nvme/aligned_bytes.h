// AlignedBytes: memory that a drive may read and write past the page cache, zeroed when it is made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "terrace/check.h"
#include "tiers/nvme/header_table.h"

namespace terrace {

struct FreeAligned {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;

// REQUIRES: whole sectors.
inline AlignedBytes AllocateAligned(uint64_t length_bytes) {
  TERRACE_CHECK(length_bytes % kSlabSectorBytes == 0, "a drive reads and writes whole sectors");
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kSlabSectorBytes, length_bytes));
  TERRACE_CHECK(bytes != nullptr, "a few sectors at start");
  std::fill_n(bytes, length_bytes, std::byte{0});
  return AlignedBytes(bytes);
}

}  // namespace terrace
