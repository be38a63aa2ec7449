#include "tiers/disk/disk_health.h"

#include <algorithm>
#include <cerrno>

namespace terrace {

const char* DiskOpName(DiskOp op) {
  switch (op) {
    case DiskOp::kRead:
      return "read";
    case DiskOp::kWrite:
      return "write";
    case DiskOp::kWriteTable:
      return "write of the table";
    case DiskOp::kSync:
      return "sync";
    case DiskOp::kCreate:
      return "creation of a file";
    case DiskOp::kRemove:
      return "removal of a file";
  }
  return "request";
}

void DiskHealth::OnOutcome(DiskOp op, Status status, uint64_t now_us) {
  if (status.ok()) {
    failures_in_row_ = 0;
    creates_in_row_ = 0;
    if (op == DiskOp::kCreate) makes_no_files_ = false;
    if (is_full_ && op == full_op_) is_full_ = false;
    return;
  }
  if (status.code() != StatusCode::kIo) return;
  if (status.detail() == ENOSPC) {
    is_full_ = true;
    full_op_ = op;
    wanted_bytes_ = 0;
    return;
  }
  // A hole in the arena, which its clients can make, says nothing of the disk.
  if (status.detail() == EFAULT) return;
  creates_in_row_ = op == DiskOp::kCreate ? creates_in_row_ + 1 : 0;
  if (++failures_in_row_ < options_.failures_max) return;
  SwitchOff({.op = op, .error = status.detail(), .in_row = failures_in_row_}, now_us);
}

void DiskHealth::SwitchOffStuck(DiskOp op, uint64_t now_us) {
  SwitchOff({.op = op, .error = 0, .in_row = 1}, now_us);
}

void DiskHealth::SwitchOff(const Failure& failure, uint64_t now_us) {
  if (!is_on_) return;
  is_on_ = false;
  makes_no_files_ = failure.error != 0 && creates_in_row_ >= failure.in_row;
  failure_ = failure;
  probe_error_ = 0;
  ++off_count_;
  last_probe_us_ = now_us;
}

bool DiskHealth::TakeProbeTurn(uint64_t now_us) {
  if (is_on_ || now_us - last_probe_us_ < options_.probe_interval_us) return false;
  last_probe_us_ = now_us;
  return true;
}

void DiskHealth::OnProbe(Status status) {
  if (!status.ok()) {
    probe_error_ = status.code() == StatusCode::kIo ? status.detail() : EIO;
    return;
  }
  is_on_ = true;
  failures_in_row_ = 0;
  creates_in_row_ = 0;
}

void DiskHealth::OnCreateFailed(uint64_t now_us) {
  create_after_us_ = now_us + create_backoff_us_;
  create_backoff_us_ = std::min(create_backoff_us_ * 2, kCreateBackoffMaxUs);
}

// Where the system says that there was room enough (a quota, room that is kept for root), its count
// tells nothing of when the next file will find some.
void DiskHealth::OnNoRoom(uint64_t wanted_bytes, uint64_t free_bytes) {
  wanted_bytes_ = free_bytes < wanted_bytes ? wanted_bytes : 0;
}

void DiskHealth::OnRoom(uint64_t free_bytes) {
  if (is_full_ && wanted_bytes_ > 0 && free_bytes >= wanted_bytes_) is_full_ = false;
}

}  // namespace terrace
