// A few threads that share one loop at a time.
//
// THREADING: one caller at a time; tasks of one loop run at once, on the caller's thread as well.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace::tiny_llama {

class ThreadPool {
 public:
  // `threads` counts the caller's: 1 starts none. REQUIRES: threads > 0.
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs task(0) to task(count - 1), each once, in any order; returns when all are done. Which
  // thread runs a task is left to chance: a task may not depend on it.
  void ForEach(uint32_t count, const std::function<void(uint32_t)>& task);

  uint32_t thread_count() const { return static_cast<uint32_t>(helpers_.size()) + 1; }

 private:
  void Help();
  void RunTasks();

  std::mutex mutex_;
  std::condition_variable loop_began_;
  std::condition_variable loop_ended_;
  uint64_t loop_number_ = 0;  // under mutex_: changes with each loop
  uint32_t helping_ = 0;      // under mutex_: helpers that have not finished this loop
  bool is_ending_ = false;    // under mutex_

  // Of the loop in progress.
  const std::function<void(uint32_t)>* task_ = nullptr;
  uint32_t count_ = 0;
  std::atomic<uint32_t> next_ = 0;

  std::vector<std::thread> helpers_;
};

}  // namespace terrace::tiny_llama
