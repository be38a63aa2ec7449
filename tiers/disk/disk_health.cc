#include "tiers/disk/disk_health.h"

#include <cerrno>

namespace terrace {
namespace {

// Reads of at most so much measure the latency, longer ones the bandwidth.
constexpr uint64_t kShortReadBytes = 128 * 1024;
constexpr double kBytesPerUsMin = 1.0;  // a drive at 1 MB/s is worth no prediction

}  // namespace

void DiskHealth::OnOutcome(Status status, uint64_t now_us) {
  if (status.code() != StatusCode::kIo) {
    if (status.ok()) failures_in_row_ = 0;
    return;
  }
  // A hole in the arena, which its clients can make, says nothing of the disk.
  if (status.detail() == EFAULT) return;
  if (++failures_in_row_ >= options_.failures_max) SwitchOff(now_us);
}

void DiskHealth::SwitchOff(uint64_t now_us) {
  if (!is_on_) return;
  is_on_ = false;
  last_probe_us_ = now_us;
}

bool DiskHealth::TakeProbeTurn(uint64_t now_us) {
  if (is_on_ || now_us - last_probe_us_ < options_.probe_interval_us) return false;
  last_probe_us_ = now_us;
  return true;
}

void DiskHealth::OnProbe(Status status) {
  if (!status.ok()) return;
  is_on_ = true;
  failures_in_row_ = 0;
}

void DiskHealth::OnCreateFailed(uint64_t now_us) {
  create_after_us_ = now_us + create_backoff_us_;
  create_backoff_us_ = std::min(create_backoff_us_ * 2, kCreateBackoffMaxUs);
}

void DiskHealth::OnReadDone(uint64_t behind_bytes, uint64_t duration_us) {
  duration_us = std::max<uint64_t>(duration_us, 1);
  if (behind_bytes <= kShortReadBytes) {
    latency_us_ = std::max<uint64_t>((latency_us_ * 7 + duration_us) / 8, 1);
    return;
  }
  const uint64_t moving_us = duration_us > latency_us_ ? duration_us - latency_us_ : 1;
  const double measured = static_cast<double>(behind_bytes) / static_cast<double>(moving_us);
  bytes_per_us_ = std::max((bytes_per_us_ * 7 + measured) / 8, kBytesPerUsMin);
}

}  // namespace terrace
