#include "tiers/disk/disk_lock.h"

#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include "terrace/open_file.h"

namespace terrace {
namespace {

constexpr uint64_t kStepUs = 5'000;

// Whether this process has the lock itself, by another descriptor; true if the system does not say.
bool IsOwn(int lock_fd) {
  struct stat about {};
  std::ifstream locks("/proc/locks");
  if (!locks || ::fstat(lock_fd, &about) != 0) return true;
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned long long inode = 0;
    const int found = std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %*x:%*x:%llu", &pid, &inode);
    if (found == 2 && pid == ::getpid() && inode == about.st_ino) return true;
  }
  return false;
}

// Whether it is seen from here and has not ended; true if it is not known which process that is.
bool IsAlive(const LockHolder& holder, int lock_fd) {
  if (holder.pid == 0) return true;
  // In a container every daemon may have the same number.
  if (holder.pid == ::getpid()) return IsOwn(lock_fd);
  const OpenFile process(static_cast<int>(::syscall(SYS_pidfd_open, holder.pid, 0)));
  if (process.fd() < 0) return errno != ESRCH;
  pollfd ended{.fd = process.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) == 0;
}

}  // namespace

LockRefusal TakeLock(int lock_fd, uint64_t wait_us) {
  LockRefusal refusal;
  for (uint64_t waited_us = 0;; waited_us += kStepUs) {
    refusal.error = ::flock(lock_fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (refusal.error != EWOULDBLOCK) return refusal;
    refusal.holder = LockHolder::Read(lock_fd);
    refusal.is_alive = IsAlive(refusal.holder, lock_fd);
    if (refusal.is_alive || waited_us >= wait_us) return refusal;
    ::usleep(kStepUs);
  }
}

}  // namespace terrace
