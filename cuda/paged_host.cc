#include "cuda/paged_host.h"

#include "cuda/host_copy.h"
#include "cuda/run_cursor.h"

namespace terrace {
namespace {

void CopyPart(const PagedLaunch& launch, uint32_t part_index) {
  const PagedRow& row = launch.rows[launch.row_first + part_index / launch.page_count];
  const PagedPage& page = launch.pages[part_index % launch.page_count];
  auto* in_page =
      reinterpret_cast<std::byte*>(row.page0_address + page.page_index * launch.page_stride_bytes);
  auto* in_slot = reinterpret_cast<std::byte*>(page.slot_address + row.slot_offset_bytes -
                                               launch.slot_origin_bytes);
  RunCursor cursor({launch.axes, launch.axis_count});
  do {
    std::byte* page_run = in_page + cursor.page_offset_bytes();
    std::byte* slot_run = in_slot + cursor.slot_offset_bytes();
    if (launch.direction == PagedDirection::kGather) {
      CopyRun(slot_run, page_run, launch.run_bytes);
    } else {
      CopyRun(page_run, slot_run, launch.run_bytes);
    }
  } while (cursor.Advance());
}

}  // namespace

Status ValidateLaunch(const PagedLaunch& launch) {
  if (launch.struct_bytes != sizeof(PagedLaunch)) {
    return Status(StatusCode::kInvalid, "a PagedLaunch of another version");
  }
  if (launch.path != PagedPath::kKernel) {
    return Status(StatusCode::kUnsupported, "this device has no bulk copies");
  }
  if (launch.page_count == 0 || launch.page_count > kPagedPagesMax) {
    return Status(StatusCode::kInvalid, "page_count: a launch is of 1..224 pages");
  }
  if (launch.row_count == 0 || launch.row_count >= (uint32_t{1} << 31) / launch.page_count) {
    return Status(StatusCode::kInvalid, "row_count: a launch has rows, and fewer than 2^31 parts");
  }
  if (launch.axis_count > kPagedAxesMax || launch.run_bytes == 0) {
    return Status(StatusCode::kInvalid, "a nest has at most 4 loops around runs of 1 byte or more");
  }
  for (uint32_t axis = 0; axis < launch.axis_count; ++axis) {
    if (launch.axes[axis].count == 0) return Status(StatusCode::kInvalid, "a loop of no steps");
  }
  if (launch.thread_blocks_max == 0) {
    return Status(StatusCode::kInvalid, "thread_blocks_max: 1 or more");
  }
  return Status::Ok();
}

uint64_t PartBytes(const PagedLaunch& launch) {
  uint64_t byte_count = launch.run_bytes;
  for (uint32_t axis = 0; axis < launch.axis_count; ++axis) byte_count *= launch.axes[axis].count;
  return byte_count;
}

void CopyParts(const PagedLaunch& launch, uint32_t part_first, uint32_t part_count) {
  for (uint32_t part = part_first; part < part_first + part_count; ++part) CopyPart(launch, part);
  FenceRuns();
}

}  // namespace terrace
