// The one thread a Client has of its own: connects, reads when asynchronous requests wait, ends
// those whose deadline has passed, runs callbacks, and shows the daemon that this process lives.
#pragma once

#include <cstdint>

#include "client/core/core.h"

namespace terrace::client {

class Background {
 public:
  explicit Background(Core& core) : core_(core) {}
  // Until Core::Stop; ends everything pending on the way out.
  void Run();

 private:
  void RunOnce();
  bool Connect();
  void Publish(Handshake& handshake, uint32_t connection);
  void Report(const Refusal& refusal);
  void Serve();
  void Read(Link::Event event);
  void BackOff();
  uint64_t ExpireRequests();
  uint64_t ShowLife();
  void RunCallbacks();
  void DropRetired();

  Core& core_;
  uint32_t connection_count_ = 0;
  uint64_t device_refused_boot_id_ = 0;  // the daemon that is not asked for its device again
  uint64_t connected_at_us_ = 0;
  uint64_t backoff_us_ = 0;
  uint64_t random_state_ = 0;
  uint32_t sent_count_seen_ = 0;
  uint64_t sent_at_us_ = 0;
};

}  // namespace terrace::client
