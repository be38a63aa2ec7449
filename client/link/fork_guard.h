// What fork() must not carry over. A child of fork() shares the parent's sockets: if it kept them,
// the daemon would not see the parent die. So every descriptor of the library is registered here
// and closed in the child, and the child knows itself by a generation.
//
// THREADING: any thread. LIMITS: kGuardedFdsMax descriptors in the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "terrace/status.h"

namespace terrace::client {

inline constexpr size_t kGuardedFdsMax = 4096;

// What a forked child is answered.
inline constexpr Status kForked(StatusCode::kGone,
                                "this is a forked child: it needs its own Client");

// Differs between a process and its forked child. Costs one load.
uint32_t ForkGeneration();

// Held from before a descriptor is made until it is owned: fork() waits for it, so that no child
// starts with a descriptor nobody closes. Nothing that blocks happens under it.
class FdCreation {
 public:
  FdCreation();
  ~FdCreation();
  FdCreation(const FdCreation&) = delete;
  FdCreation& operator=(const FdCreation&) = delete;
};

// Owns a descriptor that a forked child does not inherit.
class GuardedFd {
 public:
  GuardedFd() = default;
  // Takes `fd`, and closes it at once when kGuardedFdsMax are owned: then is_open() is false.
  // REQUIRES: an FdCreation is held since before `fd` was made.
  explicit GuardedFd(int fd);
  ~GuardedFd() { Close(); }
  GuardedFd(GuardedFd&& other) noexcept { Swap(other); }
  GuardedFd& operator=(GuardedFd&& other) noexcept {
    GuardedFd taken(std::move(other));
    Swap(taken);
    return *this;
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void Close();
  // For sockets: the peer sees the end even if a child still has a copy.
  void ShutdownAndClose();

 private:
  void Swap(GuardedFd& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(slot_, other.slot_);
    std::swap(generation_, other.generation_);
  }

  int fd_ = -1;
  uint32_t slot_ = 0;
  uint32_t generation_ = 0;
};

}  // namespace terrace::client
