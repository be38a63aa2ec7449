// What `terrace bench device` measures of a device: paths by piece size, how much they slow other
// work of the device, and what registering host memory costs. Copies are of scratch memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/copy/transfer_plan.h"
#include "terrace/status.h"
#include "tools/terrace/bench/samples.h"

namespace terrace::tools {

struct DeviceSweepOptions {
  uint64_t call_bytes = 32 * kMiB;  // moved by one timed call
  uint32_t round_count = 5;
  std::vector<uint64_t> piece_bytes;
};

// One path at one piece size, beside one contiguous copy of as many bytes by the copy engine.
struct PathRow {
  uint64_t piece_bytes = 0;
  PagedDirection direction = PagedDirection::kGather;
  TransferPath path = TransferPath::kStaged;
  std::vector<double> gigabytes_per_second;
  std::vector<double> share_of_peak;  // each round's, of the peak measured in that round
};

// How a copy within the device slows while paged copies run.
struct VictimRow {
  uint64_t piece_bytes = 0;
  PagedDirection direction = PagedDirection::kGather;
  TransferPath path = TransferPath::kStaged;
  std::vector<double> slowdown;  // 0.03: takes 3 % longer
};

struct RegistrationRow {
  uint64_t byte_count = 0;
  std::vector<double> register_ms;
  std::vector<double> unregister_ms;
};

// Each takes turns within a round. kNoSpace and the like, with `*why`, where memory is short.
Status MeasurePaths(const Device& device, const DeviceSweepOptions& options,
                    std::vector<PathRow>* rows, std::string* why);
Status MeasureVictim(const Device& device, const DeviceSweepOptions& options,
                     std::vector<VictimRow>* rows, std::string* why);
Status MeasureRegistration(const Device& device, const DeviceSweepOptions& options,
                           std::vector<RegistrationRow>* rows, std::string* why);

}  // namespace terrace::tools
