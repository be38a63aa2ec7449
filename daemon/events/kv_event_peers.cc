#include "daemon/events/kv_event_peers.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace terrace {
namespace {

// A copy of a descriptor that may be anybody's by now.
class BorrowedSocket {
 public:
  explicit BorrowedSocket(int fd) : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 0)) {}
  ~BorrowedSocket() {
    if (fd_ >= 0) close(fd_);
  }
  BorrowedSocket(const BorrowedSocket&) = delete;
  BorrowedSocket& operator=(const BorrowedSocket&) = delete;

  // Of no other socket since the host began; 0: it is none.
  uint64_t cookie() const {
    uint64_t cookie = 0;
    socklen_t cookie_bytes = sizeof(cookie);
    return getsockopt(fd_, SOL_SOCKET, SO_COOKIE, &cookie, &cookie_bytes) == 0 ? cookie : 0;
  }
  // False if it is no TCP connection.
  bool ReceivedBytes(uint64_t* byte_count) const {
    tcp_info info = {};
    socklen_t info_bytes = sizeof(info);
    if (getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) != 0) return false;
    if (info_bytes < offsetof(tcp_info, tcpi_bytes_received) + sizeof(uint64_t)) return false;
    *byte_count = info.tcpi_bytes_received;
    return true;
  }
  void ShutDown() const { shutdown(fd_, SHUT_RDWR); }

 private:
  const int fd_;
};

}  // namespace

KvEventPeers::KvEventPeers(zmq::context_t& context, zmq::socket_t& watched, const char* name)
    : name_(name), news_(context, zmq::socket_type::pair) {
  const std::string endpoint = std::string("inproc://news-of-") + name;
  if (zmq_socket_monitor(watched.handle(), endpoint.c_str(), ZMQ_EVENT_ACCEPTED) != 0) {
    throw zmq::error_t();
  }
  news_.set(zmq::sockopt::linger, 0);
  news_.connect(endpoint);
}

uint32_t KvEventPeers::Look(uint64_t now_us) {
  TakeNews(now_us);
  if (now_us >= looked_us_ + kBetweenLooksUs) {
    looked_us_ = now_us;
    std::erase_if(peers_, [&](const Peer& peer) { return !IsWithinBounds(peer, false, now_us); });
  }
  return std::exchange(ended_count_, 0);
}

// Two parts each: u16 event, u32 value, of ACCEPTED the descriptor; then the endpoint.
void KvEventPeers::TakeNews(uint64_t now_us) {
  zmq::message_t part;
  while (news_.recv(part, zmq::recv_flags::dontwait)) {
    uint32_t fd = 0;
    const bool is_event = part.more() && part.size() == sizeof(uint16_t) + sizeof(fd);
    if (!is_event) continue;
    std::memcpy(&fd, static_cast<const std::byte*>(part.data()) + sizeof(uint16_t), sizeof(fd));
    Peer peer{.fd = static_cast<int>(fd), .since_us = now_us};
    peer.cookie = BorrowedSocket(peer.fd).cookie();
    if (peers_.size() >= kPeersMax) {
      std::erase_if(peers_,
                    [&](const Peer& known) { return !IsWithinBounds(known, false, now_us); });
    }
    const bool is_one_too_many = peers_.size() >= kPeersMax;
    if (IsWithinBounds(peer, is_one_too_many, now_us)) peers_.push_back(peer);
  }
}

bool KvEventPeers::IsWithinBounds(const Peer& peer, bool is_one_too_many, uint64_t now_us) {
  const BorrowedSocket socket(peer.fd);
  uint64_t received_bytes = 0;
  if (peer.cookie == 0 || socket.cookie() != peer.cookie ||
      !socket.ReceivedBytes(&received_bytes)) {
    return false;
  }
  const uint64_t age_s = (now_us - peer.since_us) / kUsPerSecond;
  const uint64_t bytes_max = kBytesMax + age_s * kBytesPerSecondMax;
  if (!is_one_too_many && received_bytes <= bytes_max) return true;
  socket.ShutDown();
  ++ended_count_;
  uint64_t held_back = 0;
  if (gate_.Open(now_us, &held_back)) {
    Log(LogLevel::kWarn, "kv events connection ended",
        {{"socket", name_},
         {"why", is_one_too_many ? "more peers than peers_max" : "it sent more than a router does"},
         {"peers_max", kPeersMax},
         {"received_bytes", received_bytes},
         {"bytes_max", bytes_max},
         {"not_told", held_back}});
  }
  return false;
}

}  // namespace terrace
