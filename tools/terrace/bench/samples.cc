#include "tools/terrace/bench/samples.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace terrace::tools {

Summary Summarize(std::span<const double> values) {
  if (values.empty()) return {};
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return {.median = median, .smallest = sorted.front(), .largest = sorted.back()};
}

std::string FormatSummary(const Summary& summary, int decimals) {
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", summary.median, decimals, summary.smallest,
                     decimals, summary.largest, decimals);
}

nlohmann::json ToJson(const Summary& summary) {
  return {{"median", summary.median}, {"min", summary.smallest}, {"max", summary.largest}};
}

uint32_t LatencyHistogram::BucketOf(uint64_t latency_ns) {
  if (latency_ns < kSteps) return static_cast<uint32_t>(latency_ns);
  // Example: 200 = 0b1100'1000: the leading bit gives octave 2 (128 … 255), the six bits after it
  // step 0b100100 = 36, so the bucket holds 200 and 201.
  const uint32_t octave = static_cast<uint32_t>(std::bit_width(latency_ns)) - kStepsPerOctaveLog2;
  const uint32_t step = static_cast<uint32_t>(latency_ns >> (octave - 1)) & (kSteps - 1);
  return std::min(octave * kSteps + step, kBuckets - 1);
}

double LatencyHistogram::MiddleOf(uint32_t bucket) {
  if (bucket < kSteps) return bucket;
  const uint32_t octave = bucket / kSteps;
  const uint64_t first = uint64_t{kSteps + bucket % kSteps} << (octave - 1);
  const uint64_t width = uint64_t{1} << (octave - 1);
  return static_cast<double>(first) + static_cast<double>(width - 1) / 2;
}

void LatencyHistogram::Add(uint64_t latency_ns) {
  ++counts_[BucketOf(latency_ns)];
  ++count_;
}

void LatencyHistogram::Add(const LatencyHistogram& other) {
  for (uint32_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
}

double LatencyHistogram::Percentile(double share) const {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(share * static_cast<double>(count_));
  uint64_t seen = 0;
  for (uint32_t i = 0; i < kBuckets; ++i) {
    seen += counts_[i];
    if (seen > 0 && static_cast<double>(seen) >= wanted) return MiddleOf(i);
  }
  return MiddleOf(kBuckets - 1);
}

}  // namespace terrace::tools
