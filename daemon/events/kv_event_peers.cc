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
  struct Traffic {
    uint64_t received_bytes = 0;
    uint64_t taken_bytes = 0;  // by the other end
    bool is_sending = false;   // something is on its way there
  };
  // False if it is no TCP connection.
  bool Read(Traffic* traffic) const {
    tcp_info info = {};
    socklen_t info_bytes = sizeof(info);
    if (getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) != 0) return false;
    if (info_bytes < offsetof(tcp_info, tcpi_notsent_bytes) + sizeof(uint32_t)) return false;
    *traffic = {.received_bytes = info.tcpi_bytes_received,
                .taken_bytes = info.tcpi_bytes_acked,
                .is_sending = info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0};
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
    LookAtAll(now_us);
  }
  return std::exchange(ended_count_, 0);
}

void KvEventPeers::LookAtAll(uint64_t now_us) {
  for (Peer& peer : peers_) {
    if (!IsWithinBounds(&peer, false, now_us)) peer.cookie = 0;
  }
  std::erase_if(peers_, [](const Peer& peer) { return peer.cookie == 0; });
}

// Two parts each: u16 event, u32 value, of ACCEPTED the descriptor; then the endpoint.
void KvEventPeers::TakeNews(uint64_t now_us) {
  zmq::message_t part;
  while (news_.recv(part, zmq::recv_flags::dontwait)) {
    uint32_t fd = 0;
    const bool is_event = part.more() && part.size() == sizeof(uint16_t) + sizeof(fd);
    if (!is_event) continue;
    std::memcpy(&fd, static_cast<const std::byte*>(part.data()) + sizeof(uint16_t), sizeof(fd));
    Peer peer{.fd = static_cast<int>(fd), .since_us = now_us, .taken_since_us = now_us};
    peer.cookie = BorrowedSocket(peer.fd).cookie();
    if (peers_.size() >= kPeersMax) LookAtAll(now_us);
    const bool is_one_too_many = peers_.size() >= kPeersMax;
    if (IsWithinBounds(&peer, is_one_too_many, now_us)) peers_.push_back(peer);
  }
}

bool KvEventPeers::IsWithinBounds(Peer* peer, bool is_one_too_many, uint64_t now_us) {
  const BorrowedSocket socket(peer->fd);
  BorrowedSocket::Traffic traffic;
  if (peer->cookie == 0 || socket.cookie() != peer->cookie || !socket.Read(&traffic)) return false;
  if (!traffic.is_sending || traffic.taken_bytes != peer->taken_bytes) {
    peer->taken_bytes = traffic.taken_bytes;
    peer->taken_since_us = now_us;
  }
  const uint64_t age_s = (now_us - peer->since_us) / kUsPerSecond;
  const uint64_t bytes_max = kBytesMax + age_s * kBytesPerSecondMax;
  const char* why = nullptr;
  if (is_one_too_many) {
    why = "more peers than peers_max";
  } else if (traffic.received_bytes > bytes_max) {
    why = "it sent more than a router does";
  } else if (now_us > peer->taken_since_us + kUnreadUsMax) {
    why = "it takes nothing of what is sent to it";
  }
  if (why == nullptr) return true;
  socket.ShutDown();
  ++ended_count_;
  LogEnd(why, traffic.received_bytes, bytes_max, now_us);
  return false;
}

void KvEventPeers::LogEnd(const char* why, uint64_t received_bytes, uint64_t bytes_max,
                          uint64_t now_us) {
  uint64_t held_back = 0;
  if (!gate_.Open(now_us, &held_back)) return;
  Log(LogLevel::kWarn, "kv events connection ended",
      {{"socket", name_},
       {"why", why},
       {"peers_max", kPeersMax},
       {"received_bytes", received_bytes},
       {"bytes_max", bytes_max},
       {"not_told", held_back}});
}

}  // namespace terrace
