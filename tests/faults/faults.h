// What the preloaded shim, the program under it and the script around both share: one page, mapped
// from the file that TERRACE_FAULT_PAGE names.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace terrace::faults {

// The kinds of calls that fail, in the order of FaultPage::counts; tests/long/faults.py has them,
// too.
enum class Call : uint32_t {
  kMalloc,
  kOpen,
  kMmap,
  kFtruncate,
  kFallocate,
  kMemfd,
  kSocket,
  kConnect,
  kAccept,
  kReceive,
  kSend,
  kEvent,
  kEpoll,
  kWait,
  kThread,
  kRing,
  kSync,
  kRename,
  kWrite,
  kRead,
};
inline constexpr uint32_t kCallCount = 20;

struct FaultPage {
  std::atomic<uint64_t> is_armed;  // calls count only while it is not 0
  std::atomic<uint64_t> is_struck;
  std::atomic<uint64_t> place;  // of the caller, from the beginning of its object
  std::atomic<uint64_t> counts[kCallCount];
};

inline FaultPage* MapFaultPage() {
  const char* const path = std::getenv("TERRACE_FAULT_PAGE");
  const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const mapped = mmap(nullptr, sizeof(FaultPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<FaultPage*>(mapped);
}

}  // namespace terrace::faults
