#include "tiers/disk/read_speed.h"

#include <algorithm>

#include "tiers/disk/speed_doubt.h"

namespace terrace {
namespace {

constexpr double kUsPerByteMax = 1;  // a drive at 1 MB/s is worth no prediction
constexpr int kRounds = 8;  // until latency and bandwidth agree: each has a quarter of the error

// Of what `of` says of each; `otherwise` if there is none.
template <typename Of>
double MedianOf(const std::array<ReadSpeed::Read, ReadSpeed::kReadsMax>& reads, size_t count,
                double otherwise, const Of& of) {
  if (count == 0) return otherwise;
  count = std::min(count, reads.size());
  std::array<double, ReadSpeed::kReadsMax> values{};
  for (size_t i = 0; i < count; ++i) values[i] = of(reads[i]);
  const auto middle = values.begin() + static_cast<ptrdiff_t>(count / 2);
  std::nth_element(values.begin(), middle, values.begin() + static_cast<ptrdiff_t>(count));
  return *middle;
}

}  // namespace

void ReadSpeed::OnReadDone(const Read& read, uint64_t now_us) {
  // What is in doubt does not outvote what is seen now.
  if (SpeedDoubt::IsInDoubt(now_us - measured_us_)) {
    if (!is_settled_) Settle();
    const double latency_us = LatencyUs(now_us), us_per_byte = UsPerByte(now_us);
    if (latency_us < latency_us_ || us_per_byte < us_per_byte_) alone_ = beside_ = {};
    latency_us_ = latency_us;
    us_per_byte_ = us_per_byte;
  }
  measured_us_ = now_us;
  Recent& kind = read.behind_bytes <= 2 * read.length_bytes ? alone_ : beside_;
  kind.reads[kind.count++ % kReadsMax] = read;
  is_settled_ = false;
}

// Each is what the other one leaves, so that a drive that has become slower is not taken for one of
// a long latency.
void ReadSpeed::Settle() const {
  for (int round = 0; round < kRounds; ++round) {
    const double latency_us = latency_us_;
    us_per_byte_ = MedianOf(beside_.reads, beside_.count, us_per_byte_, [&](const Read& read) {
      const double moving_us = static_cast<double>(read.duration_us) - latency_us;
      return std::clamp(moving_us / static_cast<double>(read.behind_bytes), 0.0, kUsPerByteMax);
    });
    const double us_per_byte = us_per_byte_;
    latency_us_ = MedianOf(alone_.reads, alone_.count, latency_us_, [&](const Read& read) {
      const double moving_us = static_cast<double>(read.behind_bytes) * us_per_byte;
      return std::max(static_cast<double>(read.duration_us) - moving_us, 0.0);
    });
  }
  is_settled_ = true;
}

double ReadSpeed::LatencyUs(uint64_t now_us) const {
  return SpeedDoubt::Believed(latency_us_, kFirstLatencyUs, now_us - measured_us_);
}

double ReadSpeed::UsPerByte(uint64_t now_us) const {
  return SpeedDoubt::Believed(us_per_byte_, kFirstUsPerByte, now_us - measured_us_);
}

uint64_t ReadSpeed::PredictUs(uint64_t behind_bytes, uint64_t now_us) const {
  if (!is_settled_) Settle();
  return static_cast<uint64_t>(LatencyUs(now_us) +
                               static_cast<double>(behind_bytes) * UsPerByte(now_us));
}

}  // namespace terrace
