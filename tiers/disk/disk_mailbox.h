// DiskMailbox: how the threads of a disk hand completions to the store thread, many at a time: the
// first one posts a call, those that arrive until it runs ride along.
//
// THREADING: Put on any thread, Close on the store thread; `deliver` runs on the store thread.
// OWNERSHIP: shared with the threads of the disk; what was posted and has not run does not hold it.
// After Close nothing is delivered.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/mpsc_queue.h"
#include "terrace/status.h"

namespace terrace {

struct DiskCompletion {
  enum class Kind : uint8_t { kRequest, kBufferRegistered, kBufferUnregistered };
  Kind kind = Kind::kRequest;
  uint32_t token = 0;  // of the request, or the buffer's number
  uint32_t retries = 0;
  Status status;
};

class DiskMailbox : public std::enable_shared_from_this<DiskMailbox> {
 public:
  // Runs its argument on the store thread, later, never inside this call. Called on any thread.
  using Post = std::function<void(std::function<void()>)>;
  using Deliver = std::function<void(std::span<const DiskCompletion>)>;
  DiskMailbox(Post post, Deliver deliver) : post_(std::move(post)), deliver_(std::move(deliver)) {}

  void Put(std::span<const DiskCompletion> completions);
  void Put(const DiskCompletion& completion) { Put(std::span(&completion, 1)); }
  void Close();

 private:
  void Open();

  const Post post_;
  MpscQueue<DiskCompletion> waiting_;
  // Store thread.
  Deliver deliver_;                     // none: closed
  std::vector<DiskCompletion> opened_;  // keeps its capacity between turns
};

}  // namespace terrace
