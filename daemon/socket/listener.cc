#include "daemon/socket/listener.h"

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
#include "daemon/process/socket_path.h"
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

// Of a path of ours alone.
Status TakePath(const DomainConfig& config, int* lock_fd, std::string* why) {
  std::string sentence;
  Status taken = LockSocketPath(config.socket_path, lock_fd, &sentence);
  if (taken.ok()) taken = FreeSocketPath(config.socket_path, &sentence);
  errno = taken.detail();
  return taken.ok() ? taken : Refuse(why, config, sentence, taken.code());
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
  TERRACE_RETURN_IF_ERROR(TakePath(config, &bound.lock_fd_, why));
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
