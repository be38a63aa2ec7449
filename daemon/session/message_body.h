// MessageBody: the body of one message: borrowed from the read buffer when it came in one frame and
// one read (the common case, no copy), else collected in chunks as it arrives.
//
// THREADING: the store thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {

class MessageBody {
 public:
  static constexpr size_t kChunkBytes = 64 * kKiB;

  MessageBody() = default;
  MessageBody(MessageBody&& other) noexcept { *this = std::move(other); }
  MessageBody& operator=(MessageBody&& other) noexcept;

  size_t size_bytes() const { return borrowed_.empty() ? owned_bytes_ : borrowed_.size(); }
  size_t owned_bytes() const { return owned_bytes_; }

  // REQUIRES: empty. `bytes` must stay until Own() or Clear().
  void Borrow(std::span<const std::byte> bytes) {
    TERRACE_CHECK(size_bytes() == 0, "a body is borrowed whole");
    borrowed_ = bytes;
  }
  void Append(std::span<const std::byte> bytes);
  // Copies what is borrowed, before the read buffer is used again.
  void Own();
  void Clear();

  // REQUIRES: offset_bytes + to.size() ≤ size_bytes().
  void CopyTo(size_t offset_bytes, std::span<std::byte> to) const;

  // False, and *value untouched, if the body ends before it.
  template <typename T>
  bool Read(size_t offset_bytes, T* value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return ReadArray(offset_bytes, std::span<T>(value, 1));
  }
  template <typename T>
  bool ReadArray(size_t offset_bytes, std::span<T> values) const {
    if (offset_bytes > size_bytes() || values.size_bytes() > size_bytes() - offset_bytes) {
      return false;
    }
    CopyTo(offset_bytes, std::as_writable_bytes(values));
    return true;
  }
  // The same where they lie; empty if they do not lie together, or aligned. Until Own() or Clear().
  template <typename T>
  std::span<const T> View(size_t offset_bytes, size_t count) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (offset_bytes > borrowed_.size() || count * sizeof(T) > borrowed_.size() - offset_bytes) {
      return {};
    }
    const std::byte* const first = borrowed_.data() + offset_bytes;
    if (reinterpret_cast<uintptr_t>(first) % alignof(T) != 0) return {};
    return {reinterpret_cast<const T*>(first), count};
  }

 private:
  std::span<const std::byte> borrowed_;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  size_t owned_bytes_ = 0;
};

}  // namespace terrace
