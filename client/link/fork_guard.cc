#include "client/link/fork_guard.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "client/link/cancel_deferred.h"
#include "client/link/timed_lock.h"

namespace terrace::client {
namespace {

std::atomic<uint32_t> g_generation{1};
// Owned descriptors plus one, so that zero is a free slot.
std::atomic<int> g_fds[kGuardedFdsMax];

TimedLock& CreationLock() {
  static TimedLock lock;
  return lock;
}

void BeforeFork() { CreationLock().Lock(); }
void AfterForkInParent() { CreationLock().Unlock(); }
void AfterForkInChild() {
  for (std::atomic<int>& entry : g_fds) {
    const int fd_plus_one = entry.exchange(0);
    if (fd_plus_one != 0) close(fd_plus_one - 1);
  }
  g_generation.fetch_add(1);
  CreationLock().Unlock();
}

void RegisterOnce() {
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(registered);
}

}  // namespace

uint32_t ForkGeneration() { return g_generation.load(std::memory_order_relaxed); }

FdCreation::FdCreation() {
  RegisterOnce();
  CreationLock().Lock();
}
FdCreation::~FdCreation() { CreationLock().Unlock(); }

GuardedFd::GuardedFd(int fd) {
  if (fd < 0) return;
  for (uint32_t slot = 0; slot < kGuardedFdsMax; ++slot) {
    int expected = 0;
    if (g_fds[slot].load(std::memory_order_relaxed) != 0) continue;
    if (!g_fds[slot].compare_exchange_strong(expected, fd + 1)) continue;
    fd_ = fd;
    slot_ = slot;
    generation_ = ForkGeneration();
    return;
  }
  const CancelDeferred deferred;
  close(fd);
}

void GuardedFd::Close() {
  if (fd_ < 0) return;
  if (generation_ == ForkGeneration()) {
    // Forgotten before it is closed: its number may be somebody else's a moment later.
    g_fds[slot_].store(0);
    const CancelDeferred deferred;
    close(fd_);
  }
  fd_ = -1;
}

void GuardedFd::ShutdownAndClose() {
  if (fd_ >= 0 && generation_ == ForkGeneration()) shutdown(fd_, SHUT_RDWR);
  Close();
}

}  // namespace terrace::client
