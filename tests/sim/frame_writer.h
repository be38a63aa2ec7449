// Builds and takes apart messages of frame version 1 for simulated clients and hostile tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "terrace/protocol.h"

namespace terrace::sim {

class FrameWriter {
 public:
  FrameWriter(protocol::Verb verb, uint64_t request_id) {
    protocol::FrameHeader header;
    header.verb = verb;
    header.request_id = request_id;
    Put(header);
  }
  template <typename T>
  FrameWriter& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return PutBytes(std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  FrameWriter& PutAll(const std::vector<T>& values) {
    return PutBytes(std::as_bytes(std::span(values)));
  }
  // Not inlined: g++ 12 then takes an empty span's size for any, and warns of an overflow.
  [[gnu::noinline]] FrameWriter& PutBytes(std::span<const std::byte> bytes) {
    const size_t offset_bytes = bytes_.size();
    bytes_.resize(offset_bytes + bytes.size());
    if (!bytes.empty()) std::memcpy(bytes_.data() + offset_bytes, bytes.data(), bytes.size());
    return *this;
  }
  // The frame, its size filled in. REQUIRES: it fits in one frame.
  std::vector<std::byte> Take() {
    const uint32_t frame_bytes = static_cast<uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &frame_bytes, sizeof(frame_bytes));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// Reads structs off a body; a body that is too short answers zeros and ok() turns false.
class BodyReader {
 public:
  explicit BodyReader(std::span<const std::byte> body) : body_(body) {}
  template <typename T>
  T Get() {
    T value{};
    if (body_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, body_.data(), sizeof(T));
    body_ = body_.subspan(sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> GetAll(size_t count) {
    std::vector<T> values;
    if (body_.size() / sizeof(T) < count) {
      ok_ = false;
      return values;
    }
    values.resize(count);
    if (count == 0) return values;
    std::memcpy(static_cast<void*>(values.data()), body_.data(), count * sizeof(T));
    body_ = body_.subspan(count * sizeof(T));
    return values;
  }
  bool ok() const { return ok_; }
  std::span<const std::byte> rest() const { return body_; }

 private:
  std::span<const std::byte> body_;
  bool ok_ = true;
};

}  // namespace terrace::sim
