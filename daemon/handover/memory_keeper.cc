#include "daemon/handover/memory_keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>

#include "daemon/handover/supervisor.h"
#include "terrace/lock_holder.h"

namespace terrace {
namespace {

constexpr uint64_t kFdsOfProcess = 32;

Status IoError(const char* what) { return Status(StatusCode::kIo, what, errno); }

}  // namespace

Status SendKeeperMessage(int socket_fd, KeeperVerb verb, const std::string& name, int fd,
                         int flags) {
  KeeperMessage body{.verb = verb};
  if (name.size() > sizeof(body.name)) return Status(StatusCode::kInvalid, "the name is too long");
  body.name_bytes = static_cast<uint8_t>(name.size());
  std::memcpy(body.name, name.data(), name.size());
  iovec piece{&body, sizeof(body)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket_fd, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == sizeof(body)) return Status::Ok();
  if (errno == EAGAIN || errno == ETOOMANYREFS) {
    return Status(StatusCode::kBusy, "the other end does not read");
  }
  return IoError("sendmsg");
}

Status ReceiveKeeperMessage(int socket_fd, KeeperMessage* message, int* fd, int flags) {
  *fd = -1;
  iovec piece{message, sizeof(*message)};
  msghdr packet{};
  packet.msg_iov = &piece;
  packet.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  packet.msg_control = control;
  // Not CMSG_SPACE, in which two fit: the kernel closes those for which there is no room.
  packet.msg_controllen = CMSG_LEN(sizeof(int));
  ssize_t got;
  do {
    got = recvmsg(socket_fd, &packet, flags | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return Status(StatusCode::kBusy, "the other end does not answer");
  if (got < 0) return IoError("recvmsg");
  for (cmsghdr* header = CMSG_FIRSTHDR(&packet); header != nullptr;
       header = CMSG_NXTHDR(&packet, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::memcpy(fd, CMSG_DATA(header), sizeof(int));
  }
  if (got == sizeof(*message) && message->magic == kKeeperMagic &&
      message->name_bytes <= sizeof(message->name) &&
      (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) {
    return Status::Ok();
  }
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return Status(StatusCode::kIo, got == 0 ? "the other end is gone" : "no keeper message");
}

namespace {

class MemoryKeeper {
 public:
  ~MemoryKeeper();
  Status Listen(const std::string& path, std::string* why);
  // Until a signal.
  void Serve(int signal_fd);

 private:
  void Accept();
  void Handle();
  void Put(const std::string& name, int fd);
  void GiveAll();
  void Forget(const std::string& name);
  void Hang();
  static void Tell(const std::string& sentence) {
    std::fprintf(stderr, "terraced keeper: %s\n", sentence.c_str());
  }

  std::string path_;
  int lock_fd_ = -1;
  int listen_fd_ = -1;
  int daemon_fd_ = -1;
  size_t fds_max_ = 0;
  std::map<std::string, int> held_;
};

MemoryKeeper::~MemoryKeeper() {
  if (listen_fd_ >= 0) {
    unlink(path_.c_str());
    close(listen_fd_);
  }
  if (daemon_fd_ >= 0) close(daemon_fd_);
  if (lock_fd_ >= 0) close(lock_fd_);
  for (const auto& [name, fd] : held_) close(fd);
}

Status MemoryKeeper::Listen(const std::string& path, std::string* why) {
  const auto refuse = [&](const std::string& sentence) {
    const Status status = IoError("the keeper's socket cannot be opened");
    *why = "keeper socket " + path + ": " + sentence;
    return status;
  };
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return refuse("the path has " + std::to_string(path.size()) + " bytes; it must be 1 to 107");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  // The lock decides which of two keepers may take the path for stale.
  lock_fd_ = open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0 && errno == ELOOP) {
    return refuse("its lock " + path +
                  ".lock is a symbolic link, which somebody else may have put there: remove it, or "
                  "name another path");
  }
  if (lock_fd_ < 0) return refuse(std::string("cannot create its lock: ") + std::strerror(errno));
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return refuse("another keeper serves it, " + LockHolder::Read(lock_fd_).Text() +
                  ": stop that one, or name another path");
  }
  LockHolder::NameMyself(lock_fd_);
  unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // It is born with its mode.
  const mode_t umask_before = umask(0177);
  const bool is_bound = fd >= 0 && fchmod(fd, 0600) == 0 &&
                        bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  umask(umask_before);
  errno = error;
  if (!is_bound || listen(fd, 4) != 0) {
    const Status status = refuse(std::string("cannot listen: ") + std::strerror(errno));
    if (fd >= 0) close(fd);
    return status;
  }
  path_ = path;
  listen_fd_ = fd;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kKeptFdsMax + kFdsOfProcess) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kKeptFdsMax + kFdsOfProcess);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  fds_max_ = std::min<rlim_t>(limit.rlim_cur - kFdsOfProcess, kKeptFdsMax);
  return Status::Ok();
}

void MemoryKeeper::Serve(int signal_fd) {
  for (;;) {
    pollfd polled[] = {{signal_fd, POLLIN, 0}, {listen_fd_, POLLIN, 0}, {daemon_fd_, POLLIN, 0}};
    if (poll(polled, 3, -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    // A daemon that is gone first: its successor may be at the door.
    if (polled[2].revents != 0) {
      Handle();
    } else if (polled[1].revents != 0) {
      Accept();
    }
  }
}

void MemoryKeeper::Accept() {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  const timeval patience{.tv_sec = kKeeperPatienceMs / 1000, .tv_usec = 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  ucred peer{};
  socklen_t peer_bytes = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0 || peer.uid != geteuid()) {
    Tell("refused a connection of uid " + std::to_string(peer.uid));
    close(fd);
    return;
  }
  if (daemon_fd_ >= 0) {
    (void)SendKeeperMessage(fd, KeeperVerb::kBusy, "", -1, 0);
    close(fd);
    return;
  }
  daemon_fd_ = fd;
  if (!SendKeeperMessage(fd, KeeperVerb::kWelcome, "", -1, 0).ok()) Hang();
}

void MemoryKeeper::Handle() {
  KeeperMessage message;
  int fd = -1;
  const Status status = ReceiveKeeperMessage(daemon_fd_, &message, &fd, MSG_DONTWAIT);
  if (status.code() == StatusCode::kBusy) return;
  if (!status.ok()) return Hang();
  const std::string name(message.name, message.name_bytes);
  switch (message.verb) {
    case KeeperVerb::kPut:
      return Put(name, fd);
    case KeeperVerb::kDrop:
      Forget(name);
      break;
    case KeeperVerb::kGiveAll:
      GiveAll();
      break;
    default:
      Hang();
  }
  if (fd >= 0) close(fd);
}

void MemoryKeeper::Put(const std::string& name, int fd) {
  if (fd < 0) return;
  Forget(name);
  if (held_.size() >= fds_max_) {
    Tell("holds " + std::to_string(held_.size()) + " descriptors, the limit: '" + name +
         "' is not kept; raise the limit of open files (LimitNOFILE=)");
    close(fd);
    return;
  }
  held_.emplace(name, fd);
}

void MemoryKeeper::Forget(const std::string& name) {
  const auto found = held_.find(name);
  if (found == held_.end()) return;
  close(found->second);
  held_.erase(found);
}

void MemoryKeeper::GiveAll() {
  for (const auto& [name, fd] : held_) {
    if (!SendKeeperMessage(daemon_fd_, KeeperVerb::kHeld, name, fd, 0).ok()) return Hang();
  }
  if (!SendKeeperMessage(daemon_fd_, KeeperVerb::kEnd, "", -1, 0).ok()) Hang();
}

void MemoryKeeper::Hang() {
  if (daemon_fd_ >= 0) close(daemon_fd_);
  daemon_fd_ = -1;
}

}  // namespace

Status RunMemoryKeeper(const std::string& socket_path, std::string* why) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  if (signal_fd < 0) {
    *why = std::string("keeper: signalfd: ") + std::strerror(errno);
    return IoError("signalfd");
  }
  MemoryKeeper keeper;
  const Status status = keeper.Listen(socket_path, why);
  if (status.ok()) {
    TellSupervisor("READY=1");
    keeper.Serve(signal_fd);
  }
  close(signal_fd);
  return status;
}

}  // namespace terrace
