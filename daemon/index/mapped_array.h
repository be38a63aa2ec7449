// MappedArray: a contiguous array of as many elements as there may ever be. It starts as zeros, and
// memory that nobody has touched costs nothing; what is touched lies in huge pages where there are
// any, so that a look at a random element does not wait for a page walk first.
//
// OWNERSHIP: its memory, by mmap; not reserved, so that a limit may be far above what is used.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "terrace/check.h"

namespace terrace {

template <typename T>
class MappedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "elements begin as zeros and are never destroyed");

  explicit MappedArray(size_t count) : mapped_bytes_(std::max<size_t>(count, 1) * sizeof(T)) {
    void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TERRACE_CHECK(memory != MAP_FAILED, "address space for blocks_max blocks");
    elements_ = static_cast<T*>(memory);
    // Where there are no huge pages it goes on with small ones.
    if (mapped_bytes_ >= kHugePageBytes) madvise(memory, mapped_bytes_, MADV_HUGEPAGE);
  }
  ~MappedArray() { munmap(elements_, mapped_bytes_); }
  MappedArray(const MappedArray&) = delete;
  MappedArray& operator=(const MappedArray&) = delete;

  T& operator[](size_t index) { return elements_[index]; }
  const T& operator[](size_t index) const { return elements_[index]; }

 private:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  size_t mapped_bytes_;
  T* elements_;
};

}  // namespace terrace
