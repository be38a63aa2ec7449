// MappedArray: a contiguous array of as many elements as there may ever be. It starts as zeros, and
// memory that nobody has touched costs nothing.
//
// Its first kSmallPageBytes lie in small pages, so that an array of few elements takes little more
// than they do. What is behind lies in huge pages where there are any, so that a look at a random
// element does not wait for a page walk first. To make a huge page takes the system 0.2 ms, and
// several where the machine is virtual and its host has to find the memory: whoever may not wait
// so long has another thread populate what TakeAhead names.
//
// OWNERSHIP: its memory, by mmap; not reserved, so that a limit may be far above what is used.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "terrace/check.h"

namespace terrace {

template <typename T>
class MappedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "elements begin as zeros and are never destroyed");
  static constexpr size_t kSmallPageBytes = size_t{1} << 20;
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  explicit MappedArray(size_t count)
      : array_bytes_(std::max<size_t>(count, 1) * sizeof(T)),
        mapped_bytes_(array_bytes_ + kHugePageBytes) {
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TERRACE_CHECK(mapped_ != MAP_FAILED, "address space for blocks_max blocks");
    // Huge pages begin where the small ones end.
    const auto address = reinterpret_cast<uintptr_t>(mapped_) + kSmallPageBytes;
    const uintptr_t small_end = (address + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    auto* const first = static_cast<std::byte*>(mapped_) + (small_end - address);
    elements_ = reinterpret_cast<T*>(first);
    // Where these say no it goes on with what the system gives.
    madvise(first, std::min(array_bytes_, kSmallPageBytes), MADV_NOHUGEPAGE);
    if (array_bytes_ > kSmallPageBytes) {
      madvise(first + kSmallPageBytes, array_bytes_ - kSmallPageBytes, MADV_HUGEPAGE);
    }
  }
  ~MappedArray() { munmap(mapped_, mapped_bytes_); }
  MappedArray(const MappedArray&) = delete;
  MappedArray& operator=(const MappedArray&) = delete;

  T& operator[](size_t index) { return elements_[index]; }
  const T& operator[](size_t index) const { return elements_[index]; }

  // A huge page that should be there before the first `count` elements are in use; each is named
  // once. Empty: none.
  std::span<std::byte> TakeAhead(size_t count) {
    if (std::min(count * sizeof(T), array_bytes_) <= ahead_bytes_) return {};
    auto* const piece = reinterpret_cast<std::byte*>(elements_) + ahead_bytes_;
    const size_t piece_bytes = std::min(kHugePageBytes, array_bytes_ - ahead_bytes_);
    ahead_bytes_ += piece_bytes;
    return {piece, piece_bytes};
  }

 private:
  const size_t array_bytes_;
  const size_t mapped_bytes_;
  void* mapped_;
  T* elements_;
  size_t ahead_bytes_ = kSmallPageBytes;  // named, or in small pages
};

}  // namespace terrace
