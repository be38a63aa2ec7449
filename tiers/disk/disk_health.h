// DiskHealth: whether a disk is trusted with requests. Failures in a row, or a request that does
// not come back, switch it off; a probe that succeeds switches it on again. A file system without
// room is no failure: making slabs waits, the rest goes on.
//
// THREADING: one thread.
#pragma once

#include <cstdint>

#include "terrace/status.h"

namespace terrace {

class DiskHealth {
 public:
  struct Options {
    uint32_t failures_max = 8;
    uint64_t probe_interval_us = 5'000'000;
  };
  static constexpr uint64_t kCreateBackoffMinUs = 100'000;
  static constexpr uint64_t kCreateBackoffMaxUs = 10'000'000;

  explicit DiskHealth(const Options& options) : options_(options) {}

  bool is_on() const { return is_on_; }
  // The outcome of a request. Failures are kIo.
  void OnOutcome(Status status, uint64_t now_us);
  void SwitchOff(uint64_t now_us);

  // Off, and the last probe began a probe_interval_us ago: begin one.
  bool TakeProbeTurn(uint64_t now_us);
  void OnProbe(Status status);

  bool may_create(uint64_t now_us) const { return is_on_ && now_us >= create_after_us_; }
  void OnCreateFailed(uint64_t now_us);
  void OnCreated() { create_backoff_us_ = kCreateBackoffMinUs; }

 private:
  const Options options_;
  bool is_on_ = true;
  uint32_t failures_in_row_ = 0;
  uint64_t last_probe_us_ = 0;
  uint64_t create_after_us_ = 0;
  uint64_t create_backoff_us_ = kCreateBackoffMinUs;
};

}  // namespace terrace
