#include "daemon/process/state_dir_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "daemon/config/kept_mounts.h"
#include "daemon/log/log.h"
#include "terrace/lock_holder.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "lock";

// What drives, servers and memory mean to whoever starts here, be it that he does without them. The
// lock alone says that somebody has kept something: a file of no length finds room on a drive that
// is full. Of a directory that cannot be listed nobody can say that there is nothing.
bool HasKeptFiles(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name == kLockName || name == kKeptMountsName || name.ends_with(".missed-erasures") ||
        name.find(".redis-") != std::string::npos) {
      return true;
    }
  }
  return error && error != std::errc::no_such_file_or_directory;
}

StateDirLock::Blocks BlocksOf(const DaemonConfig& config) {
  if (config.nvme.is_on() || config.redis.is_on() || !config.keeper_socket.empty() ||
      HasKeptFiles(config.state_dir)) {
    return StateDirLock::Blocks::kSomewhere;
  }
  // Under systemd memory may be kept without a keeper.
  return std::getenv("NOTIFY_SOCKET") != nullptr ? StateDirLock::Blocks::kPerhaps
                                                 : StateDirLock::Blocks::kNowhere;
}

}  // namespace

Status StateDirLock::Take(const DaemonConfig& config, std::string* why) {
  blocks_ = BlocksOf(config);
  if (blocks_ == Blocks::kNowhere && !config.kv_events.is_on()) return Status::Ok();
  std::error_code made;  // what it comes to shows below
  if (fs::create_directories(config.state_dir, made)) {
    fs::permissions(config.state_dir, fs::perms::owner_all, made);
  }
  const std::string path = config.state_dir + "/" + kLockName;
  file_.emplace(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  const bool is_locked = file_->fd() >= 0 && flock(file_->fd(), LOCK_EX | LOCK_NB) == 0;
  if (is_locked) {
    LockHolder::NameMyself(file_->fd());
    return Status::Ok();
  }
  const int error = errno;
  if (file_->fd() >= 0 && error == EWOULDBLOCK) {
    *why = "daemon.state_dir " + config.state_dir + " is in use by " +
           LockHolder::Read(file_->fd()).Text() +
           ", and each would write over what the other keeps there: stop that one, or give this "
           "one a daemon.state_dir of its own";
    return Status(StatusCode::kBusy, "another process uses state_dir");
  }
  Log(LogLevel::kWarn, "state_dir is not locked",
      {{"why", path + ": " + std::strerror(error)},
       {"remedy", "no other daemon may use it, and this one must be able to write there"}});
  return Status::Ok();
}

}  // namespace terrace
