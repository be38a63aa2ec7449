#include "tiers/arena/slot_table.h"

#include <array>

#include "terrace/check.h"
#include "terrace/checksum.h"
#include "terrace/space.h"

namespace terrace {

uint32_t RowCheck(const SlotRow& row, uint64_t table_seed, uint64_t row_index) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(&row), kSlotRowBytes);
  return static_cast<uint32_t>(
      ChecksumLeaf(bytes.subspan(kSlotRowUncheckedBytes), table_seed + row_index));
}

Checksum FoldRoots(std::span<const Checksum> roots, CommitId commit_id) {
  std::array<uint64_t, 2 * kPartsPerSpaceMax> words;
  TERRACE_CHECK(roots.size() <= kPartsPerSpaceMax, "a Space has kPartsPerSpaceMax parts at most");
  size_t count = 0;
  for (const Checksum& root : roots) {
    words[count++] = root.low;
    words[count++] = root.high;
  }
  return ChecksumRoot({words.data(), count}, commit_id);
}

}  // namespace terrace
