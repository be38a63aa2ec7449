// Numbers measured several times, reduced to what a person compares.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace terrace::tools {

// Median and spread of repeated measurements.
struct Summary {
  double median = 0;
  double smallest = 0;
  double largest = 0;
};
Summary Summarize(std::span<const double> values);
std::string FormatSummary(const Summary& summary, int decimals);  // "9.81 (9.60-9.95)"
nlohmann::json ToJson(const Summary& summary);

// Counts of latencies in buckets 1/64 of their value wide, so a percentile is right to 1.6 %. Fixed
// size and trivially copyable: it lies in memory that processes share.
class LatencyHistogram {
 public:
  void Add(uint64_t latency_ns);
  void Add(const LatencyHistogram& other);
  uint64_t count() const { return count_; }
  // The latency that `share` (0 … 1) of all samples do not exceed, in ns; 0 of no samples.
  double Percentile(double share) const;

 private:
  // Below 64 ns a bucket each; then 64 buckets an octave, up to 2^40 ns (18 minutes).
  static constexpr uint32_t kStepsPerOctaveLog2 = 6;
  static constexpr uint32_t kSteps = 1u << kStepsPerOctaveLog2;
  static constexpr uint32_t kOctaves = 40 - kStepsPerOctaveLog2;
  static constexpr uint32_t kBuckets = kSteps * (kOctaves + 1);
  static uint32_t BucketOf(uint64_t latency_ns);
  static double MiddleOf(uint32_t bucket);

  uint64_t count_ = 0;
  std::array<uint32_t, kBuckets> counts_{};
};

}  // namespace terrace::tools
