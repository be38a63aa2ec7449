#include "cuda/host/paged_host.h"

#include "cuda/abi/run_cursor.h"
#include "cuda/host/host_copy.h"

namespace terrace {
namespace {

struct Run {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};

// The runs of a range of parts, one after the other.
class PartRuns {
 public:
  PartRuns(const PagedLaunch& launch, uint32_t part_first, uint32_t part_count)
      : launch_(launch),
        cursor_({launch.axes, launch.axis_count}),
        part_(part_first),
        part_end_(part_first + part_count) {
    if (part_count > 0) EnterPart();
  }

  // False after the last one.
  bool Next(Run* run) {
    if (part_ == part_end_) return false;
    std::byte* page_run = in_page_ + cursor_.page_offset_bytes();
    std::byte* slot_run = in_slot_ + cursor_.slot_offset_bytes();
    const bool gathers = launch_.direction == PagedDirection::kGather;
    *run = gathers ? Run{slot_run, page_run} : Run{page_run, slot_run};
    if (!cursor_.Advance() && ++part_ != part_end_) EnterPart();
    return true;
  }

 private:
  void EnterPart() {
    const PagedRow& row = launch_.rows[launch_.row_first + part_ % launch_.row_count];
    const PagedPage& page = launch_.pages[part_ / launch_.row_count];
    in_page_ = reinterpret_cast<std::byte*>(row.page0_address +
                                            page.page_index * launch_.page_stride_bytes);
    in_slot_ = reinterpret_cast<std::byte*>(page.slot_address + row.slot_offset_bytes -
                                            launch_.slot_origin_bytes);
  }

  const PagedLaunch& launch_;
  RunCursor cursor_;
  uint32_t part_;
  const uint32_t part_end_;
  std::byte* in_page_ = nullptr;
  std::byte* in_slot_ = nullptr;
};

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
  PartRuns runs(launch, part_first, part_count);
  Run run;
  Run next;
  for (bool has_run = runs.Next(&run); has_run; run = next) {
    has_run = runs.Next(&next);
    CopyRun(run.to, run.from, launch.run_bytes, has_run ? next.from : run.from);
  }
  FenceRuns();
}

}  // namespace terrace
