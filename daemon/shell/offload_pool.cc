#include "daemon/shell/offload_pool.h"

#include <sys/mman.h>

#include <asio/post.hpp>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/checksum.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {

OffloadPool::OffloadPool(const Options& options, Post post, DoneCallback done)
    : options_(options),
      post_(std::move(post)),
      done_(std::move(done)),
      work_(asio::make_work_guard(queue_)) {
  try {
    for (uint32_t i = 0; i < options.threads; ++i) {
      // The store thread would be pushed aside in mid-turn by what it has just handed over.
      threads_.push_back(StartThread(
          "terrace-offload", [this] { queue_.run(); }, Waking::kPatient));
    }
  } catch (...) {  // there are no more threads to be had
    Stop();
    throw;
  }
}

OffloadPool::~OffloadPool() { Stop(); }

Status OffloadPool::Submit(ChecksumJob job) {
  if (jobs_in_flight_ >= options_.jobs_max) {
    ++jobs_refused_;
    return Status(StatusCode::kBusy, "the checksum queue is full");
  }
  ++jobs_in_flight_;
  ++jobs_taken_;
  asio::post(queue_, [this, job = std::move(job)] {
    std::vector<Checksum> roots;
    roots.reserve(job.parts.size());
    for (const ChecksumJob::Part& part : job.parts) {
      roots.push_back(ChecksumPart(part.bytes, part.seed));
    }
    post_([this, id = job.id, roots = std::move(roots)] {
      TERRACE_CHECK(jobs_in_flight_ > 0, "a job comes back once: below 0 no queue is ever full");
      --jobs_in_flight_;
      done_(id, roots);
    });
  });
  return Status::Ok();
}

void OffloadPool::Populate(std::span<std::byte> memory) {
  asio::post(queue_, [memory] { madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE); });
}

void OffloadPool::Stop() {
  queue_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace terrace
