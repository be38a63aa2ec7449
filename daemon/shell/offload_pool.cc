#include "daemon/shell/offload_pool.h"

#include <sys/mman.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <memory>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/checksum.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {
namespace {

std::unique_ptr<asio::thread_pool> NewThreads(uint32_t count) {
  // The store thread would be pushed aside in mid-turn by what it has just handed over.
  const BornAs born("terrace-offload", Waking::kPatient);
  return std::make_unique<asio::thread_pool>(count);
}

}  // namespace

OffloadPool::OffloadPool(const Options& options, asio::io_context& store_loop, DoneCallback done)
    : options_(options),
      store_loop_(store_loop),
      done_(std::move(done)),
      threads_(NewThreads(options.threads)) {}

OffloadPool::~OffloadPool() { Stop(); }

Status OffloadPool::Submit(ChecksumJob job) {
  if (jobs_in_flight_ >= options_.jobs_max) {
    ++jobs_refused_;
    return Status(StatusCode::kBusy, "the checksum queue is full");
  }
  ++jobs_in_flight_;
  ++jobs_taken_;
  asio::post(*threads_, [this, job = std::move(job)] {
    std::vector<Checksum> roots;
    roots.reserve(job.parts.size());
    for (const ChecksumJob::Part& part : job.parts) {
      roots.push_back(ChecksumPart(part.bytes, part.seed));
    }
    asio::post(store_loop_, [this, id = job.id, roots = std::move(roots)] {
      TERRACE_CHECK(jobs_in_flight_ > 0, "a job comes back once: below 0 no queue is ever full");
      --jobs_in_flight_;
      done_(id, roots);
    });
  });
  return Status::Ok();
}

void OffloadPool::Populate(std::span<std::byte> memory) {
  asio::post(*threads_, [memory] { madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE); });
}

void OffloadPool::Stop() {
  threads_->stop();
  threads_->join();
}

}  // namespace terrace
