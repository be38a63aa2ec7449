#include "tiers/disk/read_speed.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr double kUsPerByteMax = 1;  // a drive at 1 MB/s is worth no prediction

}  // namespace

void ReadSpeed::Recent::Add(double value) {
  values_[count_++ % kReadsMax] = value;
  std::array<double, kReadsMax> sorted = values_;
  const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(count_, kReadsMax));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  median_ = *middle;
}

void ReadSpeed::OnReadDone(const Read& read) {
  const auto took_us = static_cast<double>(read.duration_us);
  const auto behind = static_cast<double>(std::max<uint64_t>(read.behind_bytes, 1));
  if (read.behind_bytes <= 2 * read.length_bytes) {
    latency_us_.Add(std::max(took_us - behind * us_per_byte_.median(), 0.0));
  } else {
    const double moving_us = std::max(took_us - latency_us_.median(), 0.0);
    us_per_byte_.Add(std::min(moving_us / behind, kUsPerByteMax));
  }
}

uint64_t ReadSpeed::PredictUs(uint64_t behind_bytes) const {
  return static_cast<uint64_t>(latency_us_.median() +
                               static_cast<double>(behind_bytes) * us_per_byte_.median());
}

}  // namespace terrace
