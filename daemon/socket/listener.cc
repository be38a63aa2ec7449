#include "daemon/socket/listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/handover/fd_store.h"
#include "terrace/lock_holder.h"
#include "terrace/secret_mode.h"

namespace terrace {
namespace {

constexpr int kBacklog = 512;

Status Refuse(std::string* why, const DomainConfig& config, const std::string& sentence,
              StatusCode code = StatusCode::kIo) {
  const int error = errno;
  *why = "domain " + config.name + ": socket " + config.socket_path + ": " + sentence;
  return Status(code, "the socket cannot be opened", error);
}

std::string ErrnoText() { return std::strerror(errno); }

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool AddressOf(const std::string& path, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (path.size() >= sizeof(address->sun_path)) return false;
  std::memcpy(address->sun_path, path.data(), path.size());
  return true;
}

// 0: somebody listens; else the errno of the attempt.
int TryConnect(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = connected == 0 ? 0 : errno;
  close(fd);
  return error;
}

// Two daemons that start at once must not both find the socket stale: whoever holds the lock
// decides.
Status Lock(const DomainConfig& config, int* lock_fd, std::string* why) {
  const std::string lock_path = config.socket_path + ".lock";
  *lock_fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (*lock_fd < 0 && errno == ELOOP) {
    return Refuse(why, config,
                  lock_path +
                      " is a symbolic link, which somebody else may have put there: remove "
                      "it, or name another path",
                  StatusCode::kInvalid);
  }
  const int error = errno;
  struct stat about {};
  const bool is_there = *lock_fd < 0 && lstat(lock_path.c_str(), &about) == 0;
  errno = error;
  if (is_there && error == EACCES) {
    return Refuse(why, config,
                  lock_path + " belongs to uid " + std::to_string(about.st_uid) +
                      ", whose daemon has made it: remove it, if no daemon of theirs runs, or "
                      "name another path");
  }
  if (*lock_fd < 0) {
    const std::string reason = ErrnoText();
    return Refuse(why, config,
                  errno == ENOENT ? "its directory " + DirectoryOf(config.socket_path) +
                                        " does not exist: create it, or name another path"
                                  : "cannot create " + lock_path + ": " + reason +
                                        "; the daemon needs to write to that directory");
  }
  if (flock(*lock_fd, LOCK_EX | LOCK_NB) == 0) {
    LockHolder::NameMyself(*lock_fd);
    return Status::Ok();
  }
  return Refuse(why, config,
                "socket busy: another terraced, " + LockHolder::Read(*lock_fd).Text() + ", holds " +
                    lock_path + "; stop it, or name another path",
                StatusCode::kBusy);
}

Status RemoveStale(const DomainConfig& config, const sockaddr_un& address, std::string* why) {
  struct stat about;
  if (lstat(config.socket_path.c_str(), &about) != 0) return Status::Ok();
  if (!S_ISSOCK(about.st_mode)) {
    return Refuse(why, config,
                  "there is something else than a socket: remove it, or name another "
                  "path",
                  StatusCode::kInvalid);
  }
  const int error = TryConnect(address);
  if (error == 0 || error == EAGAIN) {
    return Refuse(why, config,
                  "socket busy: somebody answers there; stop that daemon, or name another path",
                  StatusCode::kBusy);
  }
  if (error == ECONNREFUSED && unlink(config.socket_path.c_str()) == 0) return Status::Ok();
  errno = error == ECONNREFUSED ? errno : error;
  return Refuse(why, config, "cannot replace what is there: " + ErrnoText());
}

}  // namespace

Status TakeActivatedSockets(std::map<std::string, int>* sockets, std::map<std::string, int>* stored,
                            std::string* why) {
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(1, &names);
  if (count < 0) {
    *why =
        std::string("socket activation: cannot read what systemd passed: ") + std::strerror(-count);
    return Status(StatusCode::kIo, "socket activation failed", -count);
  }
  Status status;
  for (int i = 0; i < count; ++i) {
    const int fd = SD_LISTEN_FDS_START + i;
    const std::string name = names == nullptr ? "unknown" : names[i];
    if (IsStoredFdName(name)) {
      (*stored)[name] = fd;
      continue;
    }
    if (name == kMetricsFdName && sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) > 0 &&
        sd_is_socket(fd, AF_UNIX, SOCK_STREAM, 1) == 0) {
      (*sockets)[name] = fd;
      continue;
    }
    if (sd_is_socket(fd, AF_UNIX, SOCK_STREAM, 1) <= 0) {
      *why = "socket activation: descriptor " + name +
             " is no listening Unix stream socket: use ListenStream= with a path in the .socket "
             "unit" +
             (name == kMetricsFdName ? " of a domain, and with an address and a port here" : "");
      status = Status(StatusCode::kInvalid, "socket activation failed");
    }
    (*sockets)[name] = fd;
  }
  for (int i = 0; names != nullptr && i < count; ++i) std::free(names[i]);
  std::free(names);
  return status;
}

Listener Listener::Adopt(int fd, const DomainConfig& config, std::string* otherwise) {
  Listener listener;
  listener.fd_ = fd;
  otherwise->clear();
  sockaddr_un address = {};
  socklen_t bytes = sizeof(address) - 1;  // so that the path ends
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return listener;
  const std::string path = address.sun_path;
  if (path != config.socket_path) {
    *otherwise = "the socket unit made " + path + ", and the domain's socket is " +
                 config.socket_path + ", which nobody listens on";
  }
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode)) return listener;
  const mode_t mode = about.st_mode & 0777;
  if (mode != config.socket_mode) {
    *otherwise += (otherwise->empty() ? "the socket unit gave " + path : std::string("; it has")) +
                  " mode " + ModeText(mode) + ", and the domain's socket_mode is " +
                  ModeText(config.socket_mode);
  }
  return listener;
}

Status Listener::Bind(const DomainConfig& config, Listener* listener, std::string* why) {
  sockaddr_un address;
  if (!AddressOf(config.socket_path, &address)) {
    return Refuse(why, config,
                  "the path has " + std::to_string(config.socket_path.size()) +
                      " bytes; the limit is 107: name a shorter one",
                  StatusCode::kInvalid);
  }
  if (config.is_socket_default) mkdir(DirectoryOf(config.socket_path).c_str(), 0755);
  Listener bound;
  TERRACE_RETURN_IF_ERROR(Lock(config, &bound.lock_fd_, why));
  TERRACE_RETURN_IF_ERROR(RemoveStale(config, address, why));
  bound.fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bound.fd_ < 0) return Refuse(why, config, "cannot create it: " + ErrnoText());
  // It is born with its mode: what is at the path later may be somebody else's.
  const mode_t umask_before = umask(0);
  const int error =
      fchmod(bound.fd_, config.socket_mode) == 0 &&
              bind(bound.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0
          ? 0
          : errno;
  umask(umask_before);
  errno = error;
  if (error != 0) {
    return Refuse(why, config,
                  "cannot bind it: " + ErrnoText() +
                      "; the daemon needs to write to the directory " +
                      DirectoryOf(config.socket_path));
  }
  bound.path_ = config.socket_path;
  if (listen(bound.fd_, kBacklog) != 0) {
    return Refuse(why, config, "cannot listen: " + ErrnoText());
  }
  *listener = std::move(bound);
  return Status::Ok();
}

int Listener::ReleaseFd() { return std::exchange(fd_, -1); }

Listener::Listener(Listener&& other) noexcept { *this = std::move(other); }

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(lock_fd_, other.lock_fd_);
  std::swap(path_, other.path_);
  return *this;
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
  if (!path_.empty()) unlink(path_.c_str());
  // The lock file stays: removing it would let two daemons lock two files of one name.
  if (lock_fd_ >= 0) close(lock_fd_);
}

}  // namespace terrace
