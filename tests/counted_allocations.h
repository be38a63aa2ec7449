// How many allocations the calling thread has made, by an operator new that counts them, and finds
// no memory where a test says so.
//
// It is a program's only one: at most one source of a test program includes this. Not with a
// sanitizer, which brings its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace terrace::test {

inline thread_local uint64_t g_allocation_count = 0;

// Whether there is no memory for this allocation, on whatever thread it is made. Null: there is.
inline std::atomic<bool (*)(size_t bytes)> g_refuses{nullptr};

// For as long as it lives. One at a time.
class ShortMemory {
 public:
  explicit ShortMemory(bool (*refuses)(size_t bytes)) { g_refuses = refuses; }
  ~ShortMemory() { g_refuses = nullptr; }
  ShortMemory(const ShortMemory&) = delete;
  ShortMemory& operator=(const ShortMemory&) = delete;
};

}  // namespace terrace::test

// Not inlined: the compiler would see malloc and delete meet, or new and free.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++terrace::test::g_allocation_count;
  const auto refuses = terrace::test::g_refuses.load(std::memory_order_relaxed);
  if (refuses != nullptr && refuses(bytes)) throw std::bad_alloc();
  if (void* allocated = std::malloc(bytes)) return allocated;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* allocated) noexcept { std::free(allocated); }
[[gnu::noinline]] void operator delete(void* allocated, size_t) noexcept { std::free(allocated); }
