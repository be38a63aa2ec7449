// Acceptor: new connections of one domain. Each peer is identified and authorised before a session
// hears of it.
//
// THREADING: store thread. OWNERSHIP: owns the listening descriptor (and, if bound here, its file).
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <functional>

#include "daemon/domain.h"
#include "daemon/doorkeeper.h"
#include "daemon/listener.h"

namespace terrace {

class Acceptor {
 public:
  struct Peer {
    int socket_fd = -1;  // the callee closes it
    int pidfd = -1;      // or -1; the callee closes it
    PeerCredentials credentials;
  };
  struct Events {
    std::function<void(const Peer&)> on_peer;
    // Somebody was turned away, or the system would not accept; for the log.
    std::function<void(const PeerCredentials&, const std::string& why)> on_refused;
  };
  // `config` and `doorkeeper` outlive the Acceptor.
  Acceptor(asio::io_context& loop, const DomainConfig& config, Doorkeeper& doorkeeper,
           Listener listener, Events events);

  void Begin() { Wait(); }

 private:
  static constexpr int kAcceptsPerTurn = 16;
  static constexpr std::chrono::milliseconds kPause{100};  // when descriptors have run out

  void Wait();
  void Pause();
  bool AcceptOne();

  const DomainConfig& config_;
  Doorkeeper& doorkeeper_;
  Listener listener_;
  const Events events_;
  asio::posix::stream_descriptor descriptor_;
  asio::steady_timer pause_;
};

}  // namespace terrace
