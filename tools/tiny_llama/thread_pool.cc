#include "tiny_llama/thread_pool.h"

#include "terrace/check.h"

namespace terrace::tiny_llama {

ThreadPool::ThreadPool(uint32_t threads) {
  TERRACE_CHECK(threads > 0, "the caller's thread is one of them");
  for (uint32_t i = 1; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  loop_began_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::ForEach(uint32_t count, const std::function<void(uint32_t)>& task) {
  {
    std::lock_guard lock(mutex_);
    task_ = &task;
    count_ = count;
    next_ = 0;
    helping_ = static_cast<uint32_t>(helpers_.size());
    ++loop_number_;
  }
  loop_began_.notify_all();
  RunTasks();
  // A helper that comes late finds no task left, but must have looked before the next loop begins.
  std::unique_lock lock(mutex_);
  loop_ended_.wait(lock, [this] { return helping_ == 0; });
}

void ThreadPool::Help() {
  uint64_t last_loop = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    loop_began_.wait(lock, [&] { return is_ending_ || loop_number_ != last_loop; });
    if (is_ending_) return;
    last_loop = loop_number_;
    lock.unlock();
    RunTasks();
    lock.lock();
    if (--helping_ == 0) loop_ended_.notify_one();
  }
}

void ThreadPool::RunTasks() {
  for (uint32_t i = next_++; i < count_; i = next_++) (*task_)(i);
}

}  // namespace terrace::tiny_llama
