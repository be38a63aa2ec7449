#include "tiers/disk/thread_engine.h"

#include <utility>

#include "tiers/disk/disk_files.h"

namespace terrace {

ThreadEngine::ThreadEngine(Options options)
    : options_(std::move(options)),
      workers_({.name = "terrace-disk", .threads = options_.threads}),
      is_stopping_(workers_.is_stopping()) {}

void ThreadEngine::Begin(std::span<const DiskTransfer> transfers) {
  for (const DiskTransfer& transfer : transfers) {
    jobs_.push_back([this, transfer] { Run(transfer); });
  }
  workers_.Submit(&jobs_);
}

void ThreadEngine::Run(const DiskTransfer& transfer) const {
  TransferProgress progress(TransferProgress::Kind::kPayload, transfer.op, transfer.length_bytes);
  const Status status = TransferNow(transfer, &progress, options_.result_filter, is_stopping_);
  options_.mailbox->Put({.token = transfer.token, .retries = progress.retries(), .status = status});
}

void ThreadEngine::RegisterBuffer(uint32_t index, std::span<std::byte> /*memory*/) {
  options_.mailbox->Put(
      {.kind = DiskCompletion::Kind::kBufferRegistered,
       .token = index,
       .status = Status(StatusCode::kUnsupported, "threads register no buffers")});
}

void ThreadEngine::UnregisterBuffer(uint32_t index) {
  options_.mailbox->Put({.kind = DiskCompletion::Kind::kBufferUnregistered, .token = index});
}

bool ThreadEngine::Stop(uint64_t within_us) { return workers_.Stop(within_us); }

std::string ThreadEngine::description() const {
  return "threads (" + std::to_string(options_.threads) + ")";
}

}  // namespace terrace
