// Acceptor: new connections of one domain. Each peer is identified and authorised before a session
// hears of it. Connections are taken one a turn; those of a user who connects faster than
// ConnectionPace allows wait here, unread, until it does. Root and the daemon's own user need not
// wait: they come to find out what is wrong.
//
// LIMITS: kParkedMax connections wait, kParkedOfUserMax of one user; further ones are turned away,
// one a kPaceUs with a sentence.
// THREADING: store thread. OWNERSHIP: owns the listening descriptor (and, if bound here, its file).
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>

#include "daemon/block/seams.h"
#include "daemon/socket/connection_pace.h"
#include "daemon/socket/domain.h"
#include "daemon/socket/listener.h"
#include "daemon/socket/refused_peers.h"

namespace terrace {

// Why somebody was turned away before it could say Hello.
enum class ConnectionRefusal : uint8_t {
  kNotAllowed,   // by allow_uids, allow_gids, a user that cannot be told from others, or a process
                 // that has ended
  kTooFast,      // of one user, or of all, too many wait already
  kDescriptors,  // the daemon had none left
};
inline constexpr size_t kConnectionRefusalCount = 3;

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
    std::function<void(ConnectionRefusal, const PeerCredentials&, const std::string& why)>
        on_refused;
  };
  // `clock`, `config` and `refused_peers` outlive the Acceptor.
  Acceptor(asio::io_context& loop, const Clock& clock, const DomainConfig& config,
           RefusedPeers& refused_peers, Listener listener, Events events);
  ~Acceptor();

  void Begin() { Wait(); }

 private:
  static constexpr size_t kParkedMax = 256;
  static constexpr uint32_t kParkedOfUserMax = 192;
  static constexpr int kParkedPerStep = 4;
  static constexpr int kAcceptsPerStep = 2;  // while some are parked
  static constexpr std::chrono::milliseconds kStep{1};
  static constexpr std::chrono::milliseconds kPause{100};  // when descriptors have run out

  void Wait();
  void Pause();
  bool AcceptOne();
  void Park(const Peer& peer);
  void WaitForPace();
  void AdmitParked();
  void Admit(Peer peer);

  const Clock& clock_;
  const DomainConfig& config_;
  RefusedPeers& refused_peers_;
  Listener listener_;
  const Events events_;
  asio::posix::stream_descriptor descriptor_;
  asio::steady_timer pause_;
  asio::steady_timer step_;  // of the parked ones
  int paused_fd_ = -1;       // the listening socket, while nobody is to wake us for it
  int accepted_in_step_ = 0;
  ConnectionPace pace_;
  uint64_t told_until_us_ = 0;                        // until then nobody else is told why
  std::deque<Peer> parked_;                           // in the order they came
  std::unordered_map<uint32_t, uint32_t> parked_of_;  // how many of a user
};

}  // namespace terrace
