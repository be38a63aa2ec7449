#include "daemon/shell/offload_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/checksum.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {
namespace {

constexpr uint32_t kPopulatesMax = 64;  // in the queue, beside jobs

}  // namespace

OffloadPool::OffloadPool(const Options& options, Post post, DoneCallback done)
    : options_(options),
      post_(std::move(post)),
      done_(std::move(done)),
      queue_(options.jobs_max + kPopulatesMax) {
  try {
    for (uint32_t i = 0; i < options.threads; ++i) {
      Worker* const worker = workers_.emplace_back(std::make_unique<Worker>()).get();
      // The store thread would be pushed aside in mid-turn by what it has just handed over.
      worker->thread = StartThread(
          "terrace-offload", [this, worker] { Run(worker); }, Waking::kPatient);
    }
  } catch (...) {  // there are no more threads to be had
    Stop();
    throw;
  }
}

OffloadPool::~OffloadPool() { Stop(); }

void OffloadPool::Run(Worker* worker) {
  Work work;
  while (!is_stopping_) {
    bool has_work = queue_.Take(&work);
    if (!has_work) {
      worker->is_asleep = 1;  // first: whatever comes from now on wakes it
      has_work = queue_.Take(&work);
      if (!has_work && !is_stopping_) worker->is_asleep.wait(1);
      // What it was called for is not what it has: another one is to take it.
      if (worker->is_asleep.exchange(0) == 0 && has_work) CallOne();
    }
    if (has_work) std::exchange(work, nullptr)();
  }
}

void OffloadPool::Wake(Worker* worker) {
  if (worker->is_asleep.exchange(0) != 0) worker->is_asleep.notify_one();
}

// Those that are awake look for more when they are done.
bool OffloadPool::Give(Work work) {
  if (!queue_.Put(std::move(work))) return false;
  CallOne();
  return true;
}

void OffloadPool::CallOne() {
  const auto sleeper =
      std::ranges::find_if(workers_, [](const auto& worker) { return worker->is_asleep != 0; });
  if (sleeper != workers_.end()) Wake(sleeper->get());
}

Status OffloadPool::Submit(ChecksumJob job) {
  const bool has_room = jobs_in_flight_ < options_.jobs_max;
  // Its vectors are made and freed here: a thread that frees another's takes the allocator's lock,
  // for which the other then waits.
  std::vector<Checksum> made(job.parts.size());
  Work work = [this, job = std::move(job), roots = std::move(made)]() mutable {
    for (size_t i = 0; i < roots.size(); ++i) {
      roots[i] = ChecksumPart(job.parts[i].bytes, job.parts[i].seed);
    }
    post_([this, job = std::move(job), roots = std::move(roots)] {
      TERRACE_CHECK(jobs_in_flight_ > 0, "a job comes back once: below 0 no queue is ever full");
      --jobs_in_flight_;
      done_(job.id, roots);
    });
  };
  if (!has_room || !Give(std::move(work))) {
    ++jobs_refused_;
    return Status(StatusCode::kBusy, "the checksum queue is full");
  }
  ++jobs_in_flight_;
  ++jobs_taken_;
  return Status::Ok();
}

void OffloadPool::Populate(std::span<std::byte> memory) {
  if (populates_waiting_ == kPopulatesMax) return;
  ++populates_waiting_;
  const bool is_given = Give([this, memory] {
    --populates_waiting_;
    madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
  });
  if (!is_given) --populates_waiting_;
}

void OffloadPool::Stop() {
  is_stopping_ = true;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    Wake(worker.get());
    if (worker->thread.joinable()) worker->thread.join();
  }
}

}  // namespace terrace
