// DiskWorkers: threads that do what may block, first come first served. A single worker keeps the
// order of its jobs.
//
// THREADING: Submit and Stop on one thread.
// OWNERSHIP: a job that is stuck in the operating system cannot be ended. Stop then gives its
// thread up, and what the job refers to must stay.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

class DiskWorkers {
 public:
  using Job = std::function<void()>;
  struct Options {
    std::string name;  // of the threads, at most 15 characters
    uint32_t threads = 1;
    Job on_idle;  // now and then while there is nothing to do
    uint64_t idle_us = 5'000'000;
  };
  // Throws std::system_error where no threads are to be had.
  explicit DiskWorkers(Options options);
  // REQUIRES: Stop, but where an exception passes.
  ~DiskWorkers();

  // Takes the jobs and leaves the vector empty.
  void Submit(std::vector<Job>* jobs);
  // Jobs not begun are dropped, those under way may take until `within_us`. False: some did not
  // end, their threads run on.
  bool Stop(uint64_t within_us);
  // For jobs that try again: whether they still should. Outlives the threads.
  const std::atomic<bool>& is_stopping() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
