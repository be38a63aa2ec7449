#include "tiers/disk/disk_health.h"

#include <algorithm>
#include <cerrno>

namespace terrace {
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

}  // namespace terrace
