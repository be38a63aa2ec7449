// RefusedPeers: peers that are not served. Each is told why in answer to its Hello, so that its
// library shows the reason, and never becomes a session.
//
// THREADING: store thread. LIMITS: kWaitingMax peers may be about to say Hello, for kWait; one more
// is told at once, under request id 0.
#pragma once

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>

#include "terrace/status.h"

namespace terrace {

class RefusedPeers {
 public:
  static constexpr size_t kWaitingMax = 64;
  static constexpr std::chrono::seconds kWait{2};

  RefusedPeers(asio::io_context& loop, uint64_t boot_id) : loop_(loop), boot_id_(boot_id) {}

  // Takes the connection over. `status` is not kOk.
  void TurnAway(int socket_fd, Status status, std::string why);

 private:
  struct Waiting {
    explicit Waiting(asio::io_context& loop) : socket(loop), patience(loop) {}
    asio::local::stream_protocol::socket socket;
    asio::steady_timer patience;
    Status status;
    std::string why;
  };

  void Answer(uint64_t number);

  asio::io_context& loop_;
  const uint64_t boot_id_;
  std::unordered_map<uint64_t, std::unique_ptr<Waiting>> waiting_;
  uint64_t next_number_ = 1;
};

}  // namespace terrace
