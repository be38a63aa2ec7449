// KvEventPeers: who is connected to a socket over TCP. ZeroMQ bounds the parts of what a peer
// sends, not how many a message has, and keeps them until the last one is there; nor does it bound
// how many connect. So each connection may send so many bytes in its life, which are more than
// routers need, and a bit with each second; one that sends more is shut down, and so is one too
// many.
//
// One that takes nothing of what is sent to it for kUnreadUsMax is shut down, too, and what waits
// for it is given back: ZeroMQ's own heartbeats wait behind that, and never notice.
//
// A file descriptor of ZeroMQ's may be another connection's by the time it is looked at: a copy of
// it is, its cookie tells whose it is, and only the copy is shut down.
//
// THREADING: the publisher's thread. LIMITS: kPeersMax, kBytesMax + kBytesPerSecondMax,
// kUnreadUsMax.
#pragma once

#include <cstdint>
#include <vector>
#include <zmq.hpp>

#include "daemon/log/log.h"
#include "terrace/units.h"

namespace terrace {

class KvEventPeers {
 public:
  static constexpr uint32_t kPeersMax = 128;
  static constexpr uint64_t kBytesMax = 256 * kKiB;
  static constexpr uint64_t kBytesPerSecondMax = 64;
  static constexpr uint64_t kBetweenLooksUs = 100'000;
  static constexpr uint64_t kUnreadUsMax = 30'000'000;

  // REQUIRES: `watched` is not bound yet, and outlives this.
  KvEventPeers(zmq::context_t& context, zmq::socket_t& watched, const char* name);

  // Readable when somebody has connected.
  zmq::socket_t& news() { return news_; }
  bool has_any() const { return !peers_.empty(); }
  // Looks at them all if it is time. How many connections were ended.
  uint32_t Look(uint64_t now_us);

 private:
  struct Peer {
    int fd = -1;  // ZeroMQ's
    uint64_t cookie = 0;
    uint64_t since_us = 0;
    uint64_t taken_bytes = 0;     // by its end
    uint64_t taken_since_us = 0;  // so many; or nothing was on its way
  };

  void TakeNews(uint64_t now_us);
  void LookAtAll(uint64_t now_us);
  // Ends the connection if it is above a bound. False if it is no more.
  bool IsWithinBounds(Peer* peer, bool is_one_too_many, uint64_t now_us);
  void LogEnd(const char* why, uint64_t received_bytes, uint64_t bytes_max, uint64_t now_us);

  const char* const name_;
  zmq::socket_t news_;
  std::vector<Peer> peers_;
  uint64_t looked_us_ = 0;
  uint32_t ended_count_ = 0;  // since the last look
  LogGate gate_;
};

}  // namespace terrace
