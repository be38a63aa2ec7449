#include "cuda/abi/paged_index.h"

#include <algorithm>
#include <bit>

namespace terrace {

uint32_t PagedVectorBytes(const PagedLaunch& launch, uint64_t bases_or) {
  uint64_t bits = bases_or | launch.run_bytes | launch.page_stride_bytes;
  for (uint32_t axis = 0; axis < launch.axis_count; ++axis) {
    bits |= launch.axes[axis].page_stride_bytes | launch.axes[axis].slot_stride_bytes;
  }
  for (uint32_t page = 0; page < launch.page_count; ++page) {
    bits |= launch.pages[page].slot_address - launch.slot_origin_bytes;
  }
  return uint32_t{1} << std::min(std::countr_zero(bits | 16), 4);
}

bool MakePagedIndex(const PagedLaunch& launch, uint32_t vector_bytes, PagedIndex* index) {
  constexpr uint64_t kVectorsMax = uint64_t{1} << 31;
  uint64_t vectors = launch.run_bytes / vector_bytes;
  if (vectors == 0 || vectors >= kVectorsMax) return false;
  index->vectors_per_run = FastDivider(static_cast<uint32_t>(vectors));
  for (uint32_t axis = 0; axis < launch.axis_count; ++axis) {
    const PagedAxis& from = launch.axes[launch.axis_count - 1 - axis];
    if (from.count == 0 || from.count >= kVectorsMax) return false;
    vectors *= from.count;
    if (vectors >= kVectorsMax) return false;
    index->axis_counts[axis] = FastDivider(static_cast<uint32_t>(from.count));
    index->page_strides[axis] = from.page_stride_bytes;
    index->slot_strides[axis] = from.slot_stride_bytes;
  }
  index->vectors_per_part = FastDivider(static_cast<uint32_t>(vectors));
  index->page_count = FastDivider(launch.page_count);
  vectors *= uint64_t{launch.page_count} * launch.row_count;
  if (vectors >= kVectorsMax) return false;
  index->vector_count = static_cast<uint32_t>(vectors);
  return true;
}

}  // namespace terrace
