#include "tiers/disk/disk_workers.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "tiers/disk/left_behind.h"

namespace terrace {
namespace {

// While the process cannot be built: threads that have had nothing to do yet.
constexpr uint64_t kUnwindUs = 10'000'000;

}  // namespace

struct DiskWorkers::State {
  // A condition each: to signal one that several wait for may take as long as one of them needs to
  // wake up, and the store thread signals it.
  struct Worker {
    std::condition_variable has_work;
    std::thread thread;
  };
  void Run(Worker* worker);

  Options options;
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<bool> is_stopping = false;

  std::mutex mutex;
  std::condition_variable has_ended;
  std::deque<Job> jobs;
  std::vector<Worker*> asleep;  // the last one to fall asleep is woken first
  uint32_t running = 0;
};

DiskWorkers::DiskWorkers(Options options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  State* const state = state_.get();
  const BornAs born(state->options.name.c_str());
  try {
    for (uint32_t i = 0; i < state->options.threads; ++i) {
      auto worker = std::make_unique<State::Worker>();
      worker->thread = std::thread([state, worker = worker.get()] { state->Run(worker); });
      state->workers.push_back(std::move(worker));
      ++state->running;
    }
  } catch (...) {  // no more threads are to be had
    Stop(kUnwindUs);
    throw;
  }
}

DiskWorkers::~DiskWorkers() {
  if (state_ != nullptr && std::uncaught_exceptions() > 0) Stop(kUnwindUs);
  TERRACE_CHECK(!state_ || state_->workers.empty(), "Stop comes before the end");
}

void DiskWorkers::State::Run(Worker* worker) {
  const auto idle = std::chrono::microseconds(options.idle_us);
  std::unique_lock lock(mutex);
  while (!is_stopping.load(std::memory_order_relaxed)) {
    if (jobs.empty()) {
      asleep.push_back(worker);
      const bool is_idle = worker->has_work.wait_for(lock, idle) == std::cv_status::timeout;
      std::erase(asleep, worker);  // where nobody has called it
      if (!is_idle || !jobs.empty() || !options.on_idle) continue;
      lock.unlock();
      options.on_idle();
      lock.lock();
      continue;
    }
    Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
  --running;
  has_ended.notify_all();
}

void DiskWorkers::Submit(std::vector<Job>* jobs) {
  std::vector<State::Worker*> called;
  {
    std::lock_guard lock(state_->mutex);
    std::move(jobs->begin(), jobs->end(), std::back_inserter(state_->jobs));
    const size_t count = std::min(jobs->size(), state_->asleep.size());
    called.assign(state_->asleep.rbegin(), state_->asleep.rbegin() + static_cast<ptrdiff_t>(count));
    state_->asleep.resize(state_->asleep.size() - count);
  }
  jobs->clear();
  for (State::Worker* worker : called) worker->has_work.notify_one();
}

bool DiskWorkers::Stop(uint64_t within_us) {
  bool have_ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_stopping = true;
    for (const auto& worker : state_->workers) worker->has_work.notify_one();
    have_ended = state_->has_ended.wait_for(lock, std::chrono::microseconds(within_us),
                                            [this] { return state_->running == 0; });
  }
  for (const auto& worker : state_->workers) {
    have_ended ? worker->thread.join() : worker->thread.detach();
  }
  if (have_ended) state_->workers.clear();
  if (!have_ended) LeaveBehind(std::move(state_));
  return have_ended;
}

const std::atomic<bool>& DiskWorkers::is_stopping() const { return state_->is_stopping; }

}  // namespace terrace
