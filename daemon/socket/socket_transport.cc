#include "daemon/socket/socket_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/socket/memory_to_read.h"
#include "daemon/socket/peer.h"
#include "daemon/socket/send_queue.h"
#include "terrace/check.h"
#include "terrace/protocol.h"

namespace terrace {
namespace {

bool IsOfHello(Transport::Attach attach) {
  return attach != Transport::Attach::kNothing && attach != Transport::Attach::kDeviceSlabs;
}
bool IsOfReader(Transport::Attach attach) {
  return attach == Transport::Attach::kReadersArenaAndLife ||
         attach == Transport::Attach::kReadersArenaLifeAndNotices;
}
bool HasNotices(Transport::Attach attach) {
  return attach == Transport::Attach::kArenaLifeAndNotices ||
         attach == Transport::Attach::kReadersArenaLifeAndNotices;
}

// Slots are granted by replies: all but the one to Hello, unless more was asked along with it.
bool MayGrant(std::span<const std::byte> bytes, Transport::Attach attach) {
  if (!IsOfHello(attach)) return true;
  protocol::FrameHeader header;
  if (bytes.size() < sizeof(header)) return true;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return bytes.size() != header.frame_bytes;
}

}  // namespace

struct SocketTransport::Connection {
  explicit Connection(asio::io_context& loop) : socket(loop), pidfd(loop), life(loop) {}

  asio::local::stream_protocol::socket socket;
  asio::posix::stream_descriptor pidfd;
  asio::posix::stream_descriptor life;  // our end
  std::vector<int> fds_due;             // travel with the next bytes
  std::vector<int> own_fds;             // those of them that are closed once they are sent
  uint32_t domain_index = 0;
  SendQueue unsent;
  uint64_t deadline_us = 0;  // Hello or drain must be done by then; 0: neither is awaited
  bool is_attached = false;  // the client has the arena: its death matters
  bool is_noted = false;     // and it may have a slot: on_first_slot was told
  bool is_draining = false;  // closed by us, unsent bytes still leave
  bool is_broken = false;    // a send failed: swallow until the read side notices
  bool is_waiting_to_write = false;

  ~Connection() { DropFds(); }
  void DropFds() {
    fds_due.clear();
    for (const int fd : std::exchange(own_fds, {})) close(fd);
  }
  void Owe(int fd) {
    own_fds.push_back(fd);
    fds_due.push_back(fd);
  }
  // An open file of its own for each reader, as an offset and a lock are of the open file. False
  // with errno: there is none.
  bool OweToRead(const std::vector<int>& memory_fds) {
    for (const int memory : memory_fds) {
      const int to_read = OpenToRead(memory);
      if (to_read < 0) return false;
      Owe(to_read);
    }
    return true;
  }
};

SocketTransport::SocketTransport(asio::io_context& loop, std::vector<DomainFds> domain_fds,
                                 Events events)
    : loop_(loop),
      domain_fds_(std::move(domain_fds)),
      events_(std::move(events)),
      input_(std::make_unique_for_overwrite<std::byte[]>(kReadBytes)) {}

SocketTransport::~SocketTransport() = default;

SocketTransport::Connection* SocketTransport::Find(SessionId session) {
  const auto found = connections_.find(session);
  return found == connections_.end() ? nullptr : found->second.get();
}

bool SocketTransport::Add(const Accepted& accepted) {
  TERRACE_CHECK(accepted.domain_index < domain_fds_.size(),
                "a client gets the descriptors of its own domain");
  auto connection = std::make_unique<Connection>(loop_);
  asio::error_code error;
  connection->socket.assign(asio::local::stream_protocol(), accepted.socket_fd, error);
  if (error) close(accepted.socket_fd);
  // Without its pidfd a session would be believed dead on less.
  if (!error && accepted.pidfd >= 0) connection->pidfd.assign(accepted.pidfd, error);
  if (error && accepted.pidfd >= 0) close(accepted.pidfd);
  if (error) return false;
  connection->domain_index = accepted.domain_index;
  connection->deadline_us = accepted.now_us + kHelloTimeoutUs;
  now_us_ = accepted.now_us;
  Connection& added = *connection;
  const bool is_new = connections_.emplace(accepted.session, std::move(connection)).second;
  TERRACE_CHECK(is_new, "a session has one connection: its end is taken for the session's");
  Read(accepted.session, added);
  return true;
}

// ---- input --------------------------------------------------------------------------------------

// One epoll_wait, one recvmsg, one sendmsg and one epoll_ctl a request. Letting Asio receive
// instead was no faster (its speculative receive mostly finds nothing), and would need a buffer a
// session.
void SocketTransport::Read(SessionId session, Connection& connection) {
  connection.socket.async_wait(asio::socket_base::wait_read,
                               [this, session](const asio::error_code& error) {
                                 if (!error) OnReadable(session);
                               });
}

void SocketTransport::OnReadable(SessionId session) {
  Connection* connection = Find(session);
  if (connection == nullptr || !connection->socket.is_open() || connection->is_draining) return;
  iovec piece{input_.get(), kReadBytes};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const ssize_t got = recvmsg(connection->socket.native_handle(), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read(session, *connection);
  if (got <= 0) return EndByPeer(session, *connection, CloseReason::kClientLeft);
  // Without control space the kernel has dropped the descriptors that came along.
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return EndByPeer(session, *connection, CloseReason::kDescriptors);
  }
  const std::span<const std::byte> bytes(input_.get(), static_cast<size_t>(got));
  // The session may be closed by what it sent.
  if (events_.on_bytes(session, bytes)) ResumeInput(session);
}

void SocketTransport::EndByPeer(SessionId session, Connection& connection, CloseReason reason) {
  const bool is_attached = connection.is_attached;
  events_.on_close(session, reason);
  CloseSocket(session, connection);
  events_.on_hang_up(session);
  // A peer that never had the arena cannot touch it.
  if (!is_attached) events_.on_proof_of_death(session);
}

void SocketTransport::ResumeInput(SessionId session) {
  Connection* connection = Find(session);
  if (connection == nullptr || !connection->socket.is_open() || connection->is_draining) return;
  Read(session, *connection);
}

// ---- output -------------------------------------------------------------------------------------

// The pair of life sockets; the client's end travels with the next bytes.
bool SocketTransport::AttachDescriptors(Connection& connection, Attach attach) {
  TERRACE_CHECK(!connection.life.is_open(),
                "a session has one life socket: the end of another would prove its death");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
  asio::error_code error;
  connection.life.assign(ends[0], error);
  if (error) {
    close(ends[0]);
    close(ends[1]);
    return false;
  }
  const DomainFds& fds = domain_fds_[connection.domain_index];
  const bool is_given = !IsOfReader(attach) || connection.OweToRead(fds.arena);
  if (!is_given) SayUnserved(fds.name, errno);
  if (!IsOfReader(attach)) connection.fds_due = fds.arena;
  connection.Owe(ends[1]);
  if (HasNotices(attach) && fds.notices >= 0) connection.fds_due.push_back(fds.notices);
  return is_given;
}

// Such a client tries again all the time.
void SocketTransport::SayUnserved(const std::string& domain, int error) {
  constexpr uint64_t kSilentUs = 60'000'000;
  if (now_us_ < unserved_due_us_) return;
  unserved_due_us_ = now_us_ + kSilentUs;
  Log(LogLevel::kError, "a reader cannot be served",
      {{"domain", domain}, {"why", std::string(std::strerror(error))}});
}

ssize_t SocketTransport::SendNow(Connection& connection, std::span<const std::byte> bytes) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  constexpr size_t kFdsMax = 253;  // SCM_MAX_FD
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))];
  const std::vector<int>& fds = connection.fds_due;
  if (fds.size() > kFdsMax) {
    // The client asked for slabs with its Hello still unsent. The read side sees the end.
    asio::error_code ignored;
    connection.socket.shutdown(asio::socket_base::shutdown_both, ignored);
    errno = EMSGSIZE;
    return -1;
  }
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    std::memset(control, 0, message.msg_controllen);  // what pads it, too
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(connection.socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent > 0) connection.DropFds();
  return sent;
}

uint64_t SocketTransport::Send(SessionId session, std::span<const std::byte> bytes, Attach attach) {
  Connection* connection = Find(session);
  if (connection == nullptr || !connection->socket.is_open() || connection->is_broken) return 0;
  if (IsOfHello(attach)) {
    connection->deadline_us = 0;
    if (!AttachDescriptors(*connection, attach)) {
      // Out of descriptors, or of what watches them: without its life socket the session must not
      // have the arena, and a reader none that it can write. The read side sees the end and reports
      // it.
      asio::error_code ignored;
      connection->socket.shutdown(asio::socket_base::shutdown_both, ignored);
      connection->is_broken = true;
      return 0;
    }
    connection->is_attached = true;
    WatchDeath(session, *connection);
  }
  if (attach == Attach::kDeviceSlabs) {
    // Behind what still waits: no later than the bytes of their reply.
    const std::vector<int>& slabs = domain_fds_[connection->domain_index].slabs;
    connection->fds_due.insert(connection->fds_due.end(), slabs.begin(), slabs.end());
  }
  if (connection->is_attached && !connection->is_noted && MayGrant(bytes, attach)) {
    connection->is_noted = true;
    events_.on_first_slot(session, connection->domain_index, connection->pidfd.native_handle(),
                          connection->life.native_handle());
  }
  if (connection->unsent.size_bytes() == 0) {
    const ssize_t sent = SendNow(*connection, bytes);
    if (sent == static_cast<ssize_t>(bytes.size())) return 0;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      connection->is_broken = true;
      return 0;
    }
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  connection->unsent.Append(bytes);
  unsent_bytes_ += bytes.size();
  SendQueued(session, *connection);
  return connection->unsent.size_bytes();
}

uint64_t SocketTransport::unsent_bytes_of(SessionId session) const {
  const auto found = connections_.find(session);
  return found == connections_.end() ? 0 : found->second->unsent.size_bytes();
}

// Waits until the socket takes more, unless that is under way.
void SocketTransport::SendQueued(SessionId session, Connection& connection) {
  if (connection.is_waiting_to_write) return;
  connection.is_waiting_to_write = true;
  connection.socket.async_wait(asio::socket_base::wait_write,
                               [this, session](const asio::error_code& error) {
                                 Connection* waited = Find(session);
                                 if (waited == nullptr || !waited->socket.is_open()) return;
                                 waited->is_waiting_to_write = false;
                                 const bool is_broken = error || !SendSome(*waited);
                                 if (waited->unsent.size_bytes() > 0 && !is_broken)
                                   return SendQueued(session, *waited);
                                 DropUnsent(*waited);
                                 waited->is_broken = is_broken;
                                 if (events_.on_sent) events_.on_sent(session);
                                 if (waited->is_draining) CloseSocket(session, *waited);
                               });
}

// One chunk, or as much of it as the socket takes: others have their turn before the next. False if
// it is broken.
bool SocketTransport::SendSome(Connection& connection) {
  if (connection.unsent.size_bytes() == 0) return true;
  const ssize_t sent = SendNow(connection, connection.unsent.Front());
  if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
  connection.unsent.Pop(static_cast<size_t>(sent));
  unsent_bytes_ -= static_cast<size_t>(sent);
  return true;
}

void SocketTransport::DropUnsent(Connection& connection) {
  TERRACE_CHECK(unsent_bytes_ >= connection.unsent.size_bytes(),
                "the sum that sessions are closed by has each connection's bytes");
  unsent_bytes_ -= connection.unsent.size_bytes();
  connection.unsent.Clear();
}

// ---- ends ---------------------------------------------------------------------------------------

void SocketTransport::Close(SessionId session, CloseReason reason) {
  Connection* connection = Find(session);
  if (connection == nullptr || !connection->socket.is_open() || connection->is_draining) return;
  events_.on_close(session, reason);
  // A client that does not read does not drain either.
  if (connection->unsent.size_bytes() == 0 || reason == CloseReason::kSlowReader ||
      reason == CloseReason::kNoBuffers) {
    return CloseSocket(session, *connection);
  }
  connection->is_draining = true;
  connection->deadline_us = now_us_ + kDrainTimeoutUs;
}

void SocketTransport::Forget(SessionId session) {
  Connection* connection = Find(session);
  if (connection == nullptr) return;
  asio::error_code ignored;
  connection->pidfd.close(ignored);
  connection->life.close(ignored);
  connection->is_attached = false;
  if (std::exchange(connection->is_noted, false)) events_.on_forget(session);
  if (!connection->socket.is_open()) connections_.erase(session);
}

void SocketTransport::CloseSocket(SessionId session, Connection& connection) {
  // Closing with input unread would destroy what the client has not yet read of our last reply.
  asio::error_code ignored;
  connection.socket.shutdown(asio::socket_base::shutdown_both, ignored);
  std::byte unread[4096];
  while (recv(connection.socket.native_handle(), unread, sizeof(unread), MSG_DONTWAIT) > 0) {
  }
  connection.socket.close(ignored);
  DropUnsent(connection);
  connection.DropFds();
  connection.deadline_us = 0;
  // What never had the arena needs no proof of death.
  if (!connection.is_attached) connections_.erase(session);
}

void SocketTransport::WatchDeath(SessionId session, Connection& connection) {
  WatchLife(session, connection);
  if (!connection.pidfd.is_open()) return;
  connection.pidfd.async_wait(asio::posix::descriptor_base::wait_read,
                              [this, session](const asio::error_code& error) {
                                if (!error) Die(session);
                              });
}

void SocketTransport::WatchLife(SessionId session, Connection& connection) {
  connection.life.async_wait(asio::posix::descriptor_base::wait_read,
                             [this, session](const asio::error_code& error) {
                               if (!error) OnLifeReadable(session);
                             });
}

void SocketTransport::OnLifeReadable(SessionId session) {
  Connection* connection = Find(session);
  if (connection == nullptr) return;
  const LifeSign sign = ReadLife(connection->life.native_handle());
  if (sign == LifeSign::kAlive) return WatchLife(session, *connection);
  if (sign == LifeSign::kGoodbye || !connection->pidfd.is_open()) Die(session);
}

void SocketTransport::Die(SessionId session) {
  Connection* connection = Find(session);
  if (connection == nullptr) return;
  if (connection->socket.is_open()) {
    // Told already of one that drains.
    if (!connection->is_draining) events_.on_close(session, CloseReason::kClientLeft);
    CloseSocket(session, *connection);
  }
  connections_.erase(session);
  events_.on_proof_of_death(session);
}

void SocketTransport::CloseOverdue(uint64_t now_us) {
  now_us_ = now_us;
  std::vector<SessionId> overdue;
  for (const auto& [session, connection] : connections_) {
    if (connection->deadline_us != 0 && connection->deadline_us <= now_us) {
      overdue.push_back(session);
    }
  }
  for (const SessionId session : overdue) {
    Connection* connection = Find(session);
    if (connection->is_draining) {
      CloseSocket(session, *connection);
    } else {
      EndByPeer(session, *connection, CloseReason::kNoHello);
    }
  }
}

void SocketTransport::CloseAll() {
  connections_.clear();
  unsent_bytes_ = 0;
}

}  // namespace terrace
