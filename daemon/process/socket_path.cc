#include "daemon/process/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "terrace/lock_holder.h"

namespace terrace {
namespace {

Status Refused(StatusCode code, int error) {
  return Status(code, "the path of a socket is not to be had", error);
}

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

std::string WhyNoLock(const std::string& path, const std::string& lock_path, int error) {
  if (error == ELOOP) {
    return lock_path +
           " is a symbolic link, which somebody else may have put there: remove it, or "
           "name another path";
  }
  struct stat about {};
  if (error == EACCES && lstat(lock_path.c_str(), &about) == 0) {
    return lock_path + " belongs to uid " + std::to_string(about.st_uid) +
           ", whose daemon has made it: remove it, if no daemon of theirs runs, or name another "
           "path";
  }
  if (error == ENOENT) {
    return "its directory " + std::filesystem::path(path).parent_path().string() +
           " does not exist: create it, or name another path";
  }
  return "cannot create " + lock_path + ": " + std::strerror(error) +
         "; the daemon needs to write to that directory";
}

}  // namespace

Status LockSocketPath(const std::string& path, int* lock_fd, std::string* why) {
  const std::string lock_path = path + ".lock";
  *lock_fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (*lock_fd < 0) {
    const int error = errno;
    *why = WhyNoLock(path, lock_path, error);
    return Refused(error == ELOOP ? StatusCode::kInvalid : StatusCode::kIo, error);
  }
  if (flock(*lock_fd, LOCK_EX | LOCK_NB) == 0) {
    LockHolder::NameMyself(*lock_fd);
    return Status::Ok();
  }
  const int error = errno;
  *why = "socket busy: another terraced, " + LockHolder::Read(*lock_fd).Text() + ", holds " +
         lock_path + "; stop it, or name another path";
  return Refused(StatusCode::kBusy, error);
}

Status FreeSocketPath(const std::string& path, std::string* why) {
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) return Status::Ok();
  if (!S_ISSOCK(about.st_mode)) {
    *why = "there is something else than a socket: remove it, or name another path";
    return Refused(StatusCode::kInvalid, 0);
  }
  int error = TryConnect(path);
  if (error == ECONNREFUSED && unlink(path.c_str()) == 0) return Status::Ok();
  if (error == ECONNREFUSED) error = errno;
  if (error == 0) {
    *why = "socket busy: somebody answers there; stop that daemon, or name another path";
    return Refused(StatusCode::kBusy, 0);
  }
  *why = std::string("cannot replace what is there: ") + std::strerror(error);
  return Refused(StatusCode::kIo, error);
}

}  // namespace terrace
