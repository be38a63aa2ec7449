// How many allocations the calling thread has made, by an operator new that counts them.
//
// It is a program's only one: at most one source of a test program includes this. Not with a
// sanitizer, which brings its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace terrace::test {

inline thread_local uint64_t g_allocation_count = 0;

}  // namespace terrace::test

// Not inlined: the compiler would see malloc and delete meet, or new and free.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++terrace::test::g_allocation_count;
  if (void* allocated = std::malloc(bytes)) return allocated;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* allocated) noexcept { std::free(allocated); }
[[gnu::noinline]] void operator delete(void* allocated, size_t) noexcept { std::free(allocated); }
