#include "daemon/events/ipc_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "terrace/lock_holder.h"

namespace terrace {
namespace {

constexpr std::string_view kIpc = "ipc://";

// 0: somebody listens; else the errno of the attempt.
int TryConnect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = connected == 0 || errno == EAGAIN ? 0 : errno;
  close(fd);
  return error;
}

Status Refused(StatusCode code) { return Status(code, "an endpoint of KV events is not free"); }

}  // namespace

IpcPath::~IpcPath() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status IpcPath::Take(const std::string& endpoint, std::string* why) {
  if (!endpoint.starts_with(kIpc)) return Status::Ok();
  path_ = endpoint.substr(kIpc.size());
  const std::string lock_path = path_ + ".lock";
  lock_fd_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) {
    *why = "cannot open " + lock_path + ": " + std::strerror(errno) +
           "; name a path whose directory exists and is the daemon's to write to";
    return Refused(StatusCode::kInvalid);
  }
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    *why = "another terraced, " + LockHolder::Read(lock_fd_).Text() + ", holds " + lock_path +
           ": stop it, or name another path";
    return Refused(StatusCode::kBusy);
  }
  LockHolder::NameMyself(lock_fd_);
  struct stat about {};
  if (lstat(path_.c_str(), &about) != 0) return Status::Ok();
  if (!S_ISSOCK(about.st_mode)) {
    *why = "there is something else than a socket: remove it, or name another path";
    return Refused(StatusCode::kInvalid);
  }
  if (const int error = TryConnect(path_); error != ECONNREFUSED) {
    *why = error == 0 ? "somebody listens there: stop that program, or name another path"
                      : std::string("whether somebody listens there cannot be known (") +
                            std::strerror(error) + "): remove it, or name another path";
    return Refused(StatusCode::kBusy);
  }
  return Status::Ok();
}

void IpcPath::NoteBound() {
  struct stat about {};
  if (path_.empty() || lstat(path_.c_str(), &about) != 0) return;
  device_ = about.st_dev;
  inode_ = about.st_ino;
}

bool IpcPath::IsStillBound() const {
  if (path_.empty()) return true;
  struct stat about {};
  return lstat(path_.c_str(), &about) == 0 && about.st_dev == device_ && about.st_ino == inode_;
}

}  // namespace terrace
