#include "daemon/socket/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace terrace {
namespace {

bool IsStillConnected(int socket_fd) {
  char byte;
  const ssize_t got = recv(socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

// Says nothing of the peer.
bool HasNoneLeft(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

Status NoneLeft(int error) {
  return Status(StatusCode::kNoSpace, "no descriptor is left for the peer's process", error);
}

bool HasEnded(int pidfd) {
  pollfd end{.fd = pidfd, .events = POLLIN};
  return poll(&end, 1, 0) > 0;
}

}  // namespace

Status ReadPeerCredentials(int socket_fd, PeerCredentials* peer) {
  ucred credentials;
  socklen_t size_bytes = sizeof(credentials);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size_bytes) != 0) {
    return Status(StatusCode::kIo, "the peer's credentials cannot be read", errno);
  }
  peer->uid = credentials.uid;
  peer->gid = credentials.gid;
  peer->pid = credentials.pid > 0 ? static_cast<uint32_t>(credentials.pid) : 0;
  return Status::Ok();
}

Status OpenPeerPidfd(int socket_fd, const PeerCredentials& peer, int* pidfd) {
  *pidfd = -1;
  int found = -1;
  socklen_t size_bytes = sizeof(found);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERPIDFD, &found, &size_bytes) == 0) {
    *pidfd = found;
  } else if (HasNoneLeft(errno)) {
    return NoneLeft(errno);
  } else if (errno != ENOPROTOOPT) {
    return Status(StatusCode::kGone);  // its number may be another process's by now
  } else if (peer.pid != 0) {
    found = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    if (found < 0 && HasNoneLeft(errno)) return NoneLeft(errno);
    // A pid may have been used again before it was opened, but not while its process is connected.
    if (found < 0 || IsStillConnected(socket_fd)) {
      *pidfd = found;
    } else {
      close(found);
    }
  }
  if (*pidfd < 0 || !HasEnded(*pidfd)) return Status::Ok();
  close(*pidfd);
  *pidfd = -1;
  return Status(StatusCode::kGone);
}

LifeSign ReadLife(int life_fd) {
  std::byte word;
  const ssize_t got = recv(life_fd, &word, sizeof(word), MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) return LifeSign::kGoodbye;
  const bool is_silent = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return is_silent ? LifeSign::kAlive : LifeSign::kEnded;
}

void RefusePassedDescriptors(int socket_fd) {
  const int no = 0;
  (void)setsockopt(socket_fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
}

}  // namespace terrace
