// LoopInbox: work that other threads leave to the one that runs a loop, in place of asio::post,
// which wakes that thread while it holds a lock that this thread then asks for: on a busy processor
// it runs at once in the place of who has woken it, and waits until that one's turn comes again.
//
// THREADING: Post on any thread; the rest, and the work, on the loop's.
// OWNERSHIP: shared with those who post; they may outlive the loop, which Close must not.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/mpsc_queue.h"

namespace terrace {

class LoopInbox : public std::enable_shared_from_this<LoopInbox> {
 public:
  using Work = std::function<void()>;
  using Poster = std::function<void(Work)>;

  // As io_context does, it throws std::system_error without a file descriptor to be had. The loop
  // has work, and runs, until Close.
  static std::shared_ptr<LoopInbox> Open(asio::io_context& loop);
  ~LoopInbox();
  LoopInbox(const LoopInbox&) = delete;
  LoopInbox& operator=(const LoopInbox&) = delete;

  // Runs it later, never inside this call; that of one thread in its order. After Close it is
  // destroyed in its place.
  void Post(Work work);
  // The same, for those who need not know of a loop.
  Poster poster() {
    return [inbox = shared_from_this()](Work work) { inbox->Post(std::move(work)); };
  }
  // What has not run is destroyed.
  void Close();

 private:
  LoopInbox();
  void Await();
  void RunAll();

  const int event_fd_;
  MpscQueue<Work> waiting_;
  // The loop's thread.
  std::optional<asio::posix::stream_descriptor> event_;  // none: closed
  uint64_t event_count_ = 0;
  std::vector<Work> running_;  // keeps its capacity
};

}  // namespace terrace
