// SocketTransport: sessions over Unix stream sockets. A reply is sent where it is made, in the turn
// that made it; only what the socket does not take waits for the event loop.
//
// Beside the control socket each session has two ends by which its death is proven:
//   pidfd  readable when the process has exited and every descriptor and mapping of it is gone
//   life   a socket pair; the library keeps its end open while a copy may be under way
// With a pidfd the end of the life socket proves nothing: a dying process closes its sockets before
// its devices, so it comes while a device may still write. A living process that gives up its
// session for good says so with one byte; that is the proof then. Without a pidfd the end has to
// do.
//
// THREADING: store thread. OWNERSHIP: owns all descriptors of its connections.
#pragma once

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/session/transport.h"

namespace terrace {

inline constexpr size_t kReadBytes = 192 * kKiB;         // one read of one session: 12,000 keys
inline constexpr uint64_t kHelloTimeoutUs = 10'000'000;  // from accept to Hello
inline constexpr uint64_t kDrainTimeoutUs = 2'000'000;   // from Close to closed

class SocketTransport : public Transport {
 public:
  struct Events {
    // False: no more bytes before ResumeInput.
    std::function<bool(SessionId, std::span<const std::byte>)> on_bytes;
    std::function<void(SessionId)> on_sent;  // all that Send had kept; may be empty
    std::function<void(SessionId)> on_hang_up;
    std::function<void(SessionId)> on_proof_of_death;
    // The session is about to get what it can touch the arena with. `pidfd` may be -1; both stay
    // the transport's.
    std::function<void(SessionId, uint32_t domain_index, int pidfd, int life_fd)> on_first_slot;
    // Once a connection, before it ends; not of those that CloseAll ends.
    std::function<void(SessionId, CloseReason)> on_close;
    std::function<void(SessionId)> on_forget;  // of one that on_first_slot has told of
  };
  // What a session of a domain receives; they stay the caller's.
  struct DomainFds {
    std::string name;          // as the log has it
    std::vector<int> arena;    // with Hello
    int notices = -1;          // the page, with a Hello that asks for it; −1: there is none
    std::vector<int> slabs{};  // with DeviceAttach
  };
  SocketTransport(asio::io_context& loop, std::vector<DomainFds> domain_fds, Events events);
  ~SocketTransport() override;

  struct Accepted {
    SessionId session = 0;
    uint32_t domain_index = 0;
    int socket_fd = -1;
    int pidfd = -1;  // or -1
    uint64_t now_us = 0;
  };
  // Takes the descriptors and begins to read. False, with both closed and nobody told, if the
  // kernel does not watch them.
  bool Add(const Accepted& accepted);

  uint64_t Send(SessionId session, std::span<const std::byte> bytes, Attach attach) override;
  uint64_t unsent_bytes() const override { return unsent_bytes_; }
  uint64_t unsent_bytes_of(SessionId session) const override;
  void ResumeInput(SessionId session) override;
  void Close(SessionId session, CloseReason reason) override;
  void Forget(SessionId session) override;

  // Ends connections that never said Hello or do not drain. Call about once a second.
  void CloseOverdue(uint64_t now_us);
  // Ends all connections: the daemon stops.
  void CloseAll();

 private:
  struct Connection;

  Connection* Find(SessionId session);
  void Read(SessionId session, Connection& connection);
  void OnReadable(SessionId session);
  bool AttachDescriptors(Connection& connection, Attach attach);
  void SayUnserved(const std::string& domain, int error);
  void SendQueued(SessionId session, Connection& connection);
  bool SendSome(Connection& connection);
  void DropUnsent(Connection& connection);
  ssize_t SendNow(Connection& connection, std::span<const std::byte> bytes);
  void WatchDeath(SessionId session, Connection& connection);
  void WatchLife(SessionId session, Connection& connection);
  void OnLifeReadable(SessionId session);
  void Die(SessionId session);
  void EndByPeer(SessionId session, Connection& connection, CloseReason reason);
  void CloseSocket(SessionId session, Connection& connection);

  asio::io_context& loop_;
  const std::vector<DomainFds> domain_fds_;
  const Events events_;
  const std::unique_ptr<std::byte[]> input_;  // of the read under way
  std::unordered_map<SessionId, std::unique_ptr<Connection>> connections_;
  uint64_t unsent_bytes_ = 0;
  uint64_t now_us_ = 0;           // of the last CloseOverdue or Add
  uint64_t unserved_due_us_ = 0;  // until then nothing is said of readers that cannot be served
};

}  // namespace terrace
