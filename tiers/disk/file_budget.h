// FileBudget: how many files all disks of a process may have open together, so that they never take
// the descriptors that its other work needs.
//
// THREADING: any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace terrace {

class FileBudget {
 public:
  static constexpr uint64_t kFdsPerFile = 2;
  struct Options {
    uint64_t fds_max = 0;   // that the process may have open
    uint64_t fds_kept = 0;  // of them for others than files of disks
  };
  explicit FileBudget(const Options& options)
      : fds_max_(options.fds_max),
        files_max_((options.fds_max - std::min(options.fds_max, options.fds_kept)) / kFdsPerFile) {}

  // For one more file. False: as many are open as may be.
  bool Take() {
    if (open_count_.fetch_add(1) < files_max_) return true;
    --open_count_;
    return false;
  }
  void Give() { --open_count_; }

  uint64_t fds_max() const { return fds_max_; }
  uint64_t files_max() const { return files_max_; }
  uint64_t open_count() const { return std::min<uint64_t>(open_count_, files_max_); }
  // What fds_max would have to be for all that is configured, for a person.
  uint64_t fds_wanted() const { return fds_wanted_; }
  void SetFdsWanted(uint64_t fds_wanted) { fds_wanted_ = fds_wanted; }

 private:
  const uint64_t fds_max_;
  const uint64_t files_max_;
  std::atomic<uint64_t> open_count_ = 0;
  std::atomic<uint64_t> fds_wanted_ = 0;
};

}  // namespace terrace
