#include "daemon/events/ipc_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "daemon/process/socket_path.h"

namespace terrace {
namespace {

constexpr std::string_view kIpc = "ipc://";

}  // namespace

IpcPath::~IpcPath() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status IpcPath::Take(const std::string& endpoint, std::string* why) {
  if (!endpoint.starts_with(kIpc)) return Status::Ok();
  path_ = endpoint.substr(kIpc.size());
  TERRACE_RETURN_IF_ERROR(LockSocketPath(path_, &lock_fd_, why));
  return FreeSocketPath(path_, why);
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
