#include "daemon/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/peer.h"

namespace terrace {

Acceptor::Acceptor(asio::io_context& loop, const DomainConfig& config, Doorkeeper& doorkeeper,
                   Listener listener, Events events)
    : config_(config),
      doorkeeper_(doorkeeper),
      listener_(std::move(listener)),
      events_(std::move(events)),
      descriptor_(loop),
      pause_(loop) {
  const int fd = listener_.ReleaseFd();
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  descriptor_.assign(fd);
}

void Acceptor::Wait() {
  descriptor_.async_wait(asio::posix::descriptor_base::wait_read,
                         [this](const asio::error_code& error) {
                           if (error) return;
                           for (int i = 0; i < kAcceptsPerTurn; ++i) {
                             if (!AcceptOne()) return;
                           }
                           Wait();
                         });
}

void Acceptor::Pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([this](const asio::error_code& error) {
    if (!error) Wait();
  });
}

// False when there is nobody left to accept now; the next wait has been begun.
bool Acceptor::AcceptOne() {
  Peer peer;
  peer.socket_fd =
      accept4(descriptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (peer.socket_fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      events_.on_refused({}, std::string("accept: ") + std::strerror(errno) +
                                 "; raise the limit of open files (LimitNOFILE=)");
      Pause();
    } else {
      Wait();
    }
    return false;
  }
  std::string why = "the peer's credentials cannot be read";
  Status status = ReadPeerCredentials(peer.socket_fd, &peer.credentials);
  if (status.ok()) status = AuthorisePeer(config_, peer.credentials, &why);
  if (!status.ok()) {
    events_.on_refused(peer.credentials, why);
    doorkeeper_.TurnAway(peer.socket_fd, status, why);
    return true;
  }
  RefusePassedDescriptors(peer.socket_fd);
  peer.pidfd = OpenPeerPidfd(peer.socket_fd, peer.credentials);
  events_.on_peer(peer);
  return true;
}

}  // namespace terrace
