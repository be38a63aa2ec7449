#include "tiers/arena/bus_guard.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {
namespace {

struct GuardedRange {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<uint64_t> page_bytes{0};
};
// Read by the handler, so of fixed size and without locks.
std::array<GuardedRange, kGuardedRangesMax> ranges;
std::array<std::atomic<uintptr_t>, kLostPagesMax> lost_pages;
std::atomic<uint64_t> lost_count{0};
std::atomic<uint32_t> lost_now{0};
std::atomic<bool> has_unnoted{false};  // pages beyond kLostPagesMax: private to the end
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

std::mutex ranges_lock;  // of those who add and remove

const GuardedRange* RangeOf(uintptr_t address) {
  for (const GuardedRange& range : ranges) {
    const uintptr_t begin = range.begin.load(std::memory_order_acquire);
    if (begin != 0 && begin <= address && address < range.end.load()) return &range;
  }
  return nullptr;
}

void NoteLost(uintptr_t page) {
  lost_count.fetch_add(1);
  for (std::atomic<uintptr_t>& place : lost_pages) {
    uintptr_t free = 0;
    if (!place.compare_exchange_strong(free, page)) continue;
    lost_now.fetch_add(1);
    return;
  }
  has_unnoted = true;
}

// mmap is not on POSIX's list of what a handler may call; on Linux it is a bare system call.
void OnBus(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const GuardedRange* const range = RangeOf(address);
  if (range != nullptr) {
    const uint64_t page_bytes = range->page_bytes.load();
    const uintptr_t page = address / page_bytes * page_bytes;
    void* const wanted = reinterpret_cast<void*>(page);
    void* const mapped = ::mmap(wanted, page_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (mapped == wanted) {
      ::madvise(mapped, page_bytes, MADV_DONTFORK);
      NoteLost(page);
      errno = saved_errno;
      return;
    }
  }
  // The access is tried again, and ends the process.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &by_default, nullptr);
  errno = saved_errno;
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = OnBus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGBUS, &action, nullptr);
  });
}

bool MapShared(void* at, uint64_t page_bytes, int fd, uint64_t offset_bytes) {
  void* const mapped =
      ::mmap(at, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
             static_cast<off_t>(offset_bytes));
  if (mapped != at) return false;
  ::madvise(at, page_bytes, MADV_DONTFORK);
  ::madvise(at, page_bytes, MADV_DONTDUMP);
  return true;
}

// Through a mapping of its own, so that a page which cannot be had is an error and no signal.
bool CanBeHad(uint64_t page_bytes, int fd, uint64_t offset_bytes) {
  void* const trial = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset_bytes));
  if (trial == MAP_FAILED) return false;
  const bool is_there = ::madvise(trial, page_bytes, MADV_POPULATE_WRITE) == 0;
  ::munmap(trial, page_bytes);
  return is_there;
}

enum class Which : uint8_t { kAll, kThatCanBeHad };

void Remap(std::byte* base, uint64_t length_bytes, int fd, uint64_t offset_bytes, Which which) {
  if (!HasLostPages()) return;
  const auto begin = reinterpret_cast<uintptr_t>(base);
  const GuardedRange* const range = RangeOf(begin);
  if (range == nullptr) return;
  const uint64_t page_bytes = range->page_bytes.load();
  for (std::atomic<uintptr_t>& place : lost_pages) {
    const uintptr_t page = place.load();
    if (page < begin || page >= begin + length_bytes) continue;
    const uint64_t page_offset_bytes = offset_bytes + (page - begin);
    if (which == Which::kThatCanBeHad && !CanBeHad(page_bytes, fd, page_offset_bytes)) continue;
    // Freed first: lost once more, it is noted once more.
    place.store(0);
    lost_now.fetch_sub(1);
    if (!MapShared(reinterpret_cast<void*>(page), page_bytes, fd, page_offset_bytes)) return;
  }
}

}  // namespace

bool GuardFromBus(std::byte* base, uint64_t length_bytes, uint64_t page_bytes) {
  InstallOnce();
  const std::lock_guard lock(ranges_lock);
  for (GuardedRange& range : ranges) {
    if (range.begin.load() != 0) continue;
    range.end = reinterpret_cast<uintptr_t>(base) + length_bytes;
    range.page_bytes = page_bytes;
    range.begin.store(reinterpret_cast<uintptr_t>(base), std::memory_order_release);
    return true;
  }
  return false;
}

void EndGuard(std::byte* base) {
  const std::lock_guard lock(ranges_lock);
  const auto begin = reinterpret_cast<uintptr_t>(base);
  for (GuardedRange& range : ranges) {
    if (range.begin.load() != begin) continue;
    const uintptr_t end = range.end.load();
    range.begin = 0;
    for (std::atomic<uintptr_t>& place : lost_pages) {
      const uintptr_t page = place.load();
      if (page < begin || page >= end) continue;
      place.store(0);
      lost_now.fetch_sub(1);
    }
  }
}

uint64_t LostPageCount() { return lost_count.load(); }

bool HasLostPages() { return lost_now.load() > 0; }

bool HasLostPageIn(const std::byte* bytes, uint64_t length_bytes) {
  if (!HasLostPages() && !has_unnoted.load()) return false;
  const auto begin = reinterpret_cast<uintptr_t>(bytes);
  const GuardedRange* const range = RangeOf(begin);
  if (range == nullptr) return false;
  if (has_unnoted.load()) return true;
  const uint64_t page_bytes = range->page_bytes.load();
  return std::ranges::any_of(lost_pages, [&](const std::atomic<uintptr_t>& place) {
    const uintptr_t page = place.load();
    return page != 0 && page < begin + length_bytes && begin < page + page_bytes;
  });
}

void RestoreLostPages(std::byte* base, uint64_t length_bytes, int fd, uint64_t offset_bytes) {
  Remap(base, length_bytes, fd, offset_bytes, Which::kThatCanBeHad);
}

void RemapLostPages(std::byte* base, uint64_t length_bytes, int fd, uint64_t offset_bytes) {
  Remap(base, length_bytes, fd, offset_bytes, Which::kAll);
}

}  // namespace terrace
