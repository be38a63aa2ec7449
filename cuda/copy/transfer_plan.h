// Which path stores and loads take on this machine. Where the best path changes moves from machine
// to machine, so each is tried on scratch memory of the same shape, for 200 ms in all; a rule
// decides where there is no time or no memory for that.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/copy/paged_copier.h"

namespace terrace {

inline constexpr uint64_t kCalibrationUsMax = 200'000;
// From here on a copy engine alone is as fast as with a kernel and a ring, and does without them.
inline constexpr uint64_t kDirectRunBytesMin = 256 * kKiB;

// Copies of a shape like the nest's, by one path, as calibration and `terrace bench device` make
// them: scratch pages and pinned slots, in random order.
struct PathShape {
  uint64_t run_bytes = 0;
  uint32_t run_count = 0;   // a page, all layers; each layer is one run
  uint32_t page_count = 0;  // a call
};

class PathTrial {
 public:
  // A run above 1 MiB is made of tokens of at most that, 16 of them or fewer.
  static bool CanBeRun(uint64_t run_bytes);
  // kNoSpace and the like where scratch memory cannot be had. `device` outlives the trial.
  static Result<std::unique_ptr<PathTrial>> Create(const Device& device, const PathShape& shape,
                                                   const CopierOptions& options, std::string* why);
  // One call, awaited; in seconds.
  Result<double> Copy(PagedDirection direction);
  uint64_t byte_count() const;

 private:
  PathTrial(DeviceBuffer pages, DeviceBuffer slots);

  DeviceBuffer pages_;
  DeviceBuffer slots_;
  std::vector<PageSlot> asked_;
  std::unique_ptr<PagedCopier> copier_;
};

struct PathMeasurement {
  TransferPath path = TransferPath::kStaged;
  PagedDirection direction = PagedDirection::kGather;
  double bytes_per_second = 0;  // 0: could not be tried
};

struct TransferPlan {
  TransferPath store_path = TransferPath::kStaged;
  TransferPath load_path = TransferPath::kStaged;
  std::vector<PathMeasurement> measurements;  // none: by the rule
  uint64_t spent_us = 0;

  // `options` with this plan's paths.
  CopierOptions Apply(CopierOptions options) const;
};

// Without a measurement: direct for runs of kDirectRunBytesMin, else staged; where pages lie in
// host memory, the one copy that there can be.
TransferPlan PlanByRule(const PagedNest& nest, bool is_host);

// Tries every path within kCalibrationUsMax, a path's first call included; stops early rather than
// late, and what was not tried is not chosen. Blocks: for start-up.
TransferPlan Calibrate(const Device& device, const PagedNest& nest, const CopierOptions& options);

}  // namespace terrace
