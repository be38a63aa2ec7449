// DiskHealth: whether a disk is trusted with requests, and why not. Failures in a row, or a request
// that does not come back, switch it off; a probe that succeeds switches it on again. A file system
// without room is no failure: making slabs waits, the rest goes on.
//
// THREADING: one thread.
#pragma once

#include <cstdint>

#include "terrace/status.h"
#include "tiers/disk/disk.h"

namespace terrace {

// For a person: "read", "write", "sync".
const char* DiskOpName(DiskOp op);

class DiskHealth {
 public:
  struct Options {
    uint32_t failures_max = 8;
    uint64_t probe_interval_us = 5'000'000;
  };
  static constexpr uint64_t kCreateBackoffMinUs = 100'000;
  static constexpr uint64_t kCreateBackoffMaxUs = 10'000'000;

  // What went wrong, of which request.
  struct Failure {
    DiskOp op = DiskOp::kRead;
    int32_t error = 0;  // errno; 0: no answer came
    uint32_t in_row = 0;
  };

  explicit DiskHealth(const Options& options) : options_(options) {}

  bool is_on() const { return is_on_; }
  // The outcome of a request. Failures are kIo; of them ENOSPC says that the disk is full.
  void OnOutcome(DiskOp op, Status status, uint64_t now_us);
  // A request has not come back.
  void SwitchOffStuck(DiskOp op, uint64_t now_us);

  // Off, and the last probe began a probe_interval_us ago: begin one.
  bool TakeProbeTurn(uint64_t now_us);
  void OnProbe(Status status);

  // Of a disk that is off: what switched it off, and how often one has been, this time included.
  const Failure& failure() const { return failure_; }
  uint64_t off_count() const { return off_count_; }
  int32_t probe_error() const { return probe_error_; }  // errno of the last probe; 0: none failed

  bool may_create(uint64_t now_us) const { return is_on_ && now_us >= create_after_us_; }
  void OnCreateFailed(uint64_t now_us);
  void OnCreated() { create_backoff_us_ = kCreateBackoffMinUs; }
  // What switched the disk off last was that no file could be made, and that alone, and none has
  // been since: a probe, which makes none, says nothing of that.
  bool makes_no_files() const { return makes_no_files_; }

  // The last request of its kind found no room. A disk that has room again is no longer full, nor
  // is one on which such a request succeeds.
  bool is_full() const { return is_full_; }
  DiskOp full_op() const { return full_op_; }
  // So much room is what a file lacked, and there was less. `free_bytes` as the system counts.
  void OnNoRoom(uint64_t wanted_bytes, uint64_t free_bytes);
  void OnRoom(uint64_t free_bytes);

 private:
  void SwitchOff(const Failure& failure, uint64_t now_us);

  const Options options_;
  bool is_on_ = true;
  bool is_full_ = false;
  bool makes_no_files_ = false;
  DiskOp full_op_ = DiskOp::kCreate;
  uint32_t failures_in_row_ = 0;
  uint32_t creates_in_row_ = 0;  // of these the latest, that were creations of files
  Failure failure_;
  int32_t probe_error_ = 0;
  uint64_t off_count_ = 0;
  uint64_t wanted_bytes_ = 0;  // of a full disk; 0: not told by how much room there is
  uint64_t last_probe_us_ = 0;
  uint64_t create_after_us_ = 0;
  uint64_t create_backoff_us_ = kCreateBackoffMinUs;
};

}  // namespace terrace
