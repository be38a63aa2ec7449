// Frames in and out of one stream socket. FrameReader turns bytes, however they arrive, into
// checked messages; FrameSender cuts a message into frames and hands the kernel what it takes at
// once.
//
// THREADING: neither locks; their owner serialises calls. Neither ever blocks.
// LIMITS: FrameReader holds at most one frame and one message (protocol::kMessageBytesMax).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace::client {

// A whole message from the daemon. `body` is what follows the ReplyPrefix, valid until the next
// call of the reader that gave it.
struct Message {
  protocol::Verb verb = protocol::Verb::kHello;
  uint64_t request_id = 0;
  protocol::ReplyPrefix prefix;
  std::span<const std::byte> body;

  Status status() const;
};

class FrameReader {
 public:
  explicit FrameReader(uint32_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

  // Where the next bytes of the stream go; never empty. May throw std::bad_alloc.
  std::span<std::byte> WritableSpace();
  void Advance(size_t byte_count) { end_ += byte_count; }

  enum class Next { kMessage, kNeedsBytes, kGarbled };
  // Takes the next whole message. After kGarbled, with `*why` a sentence, the stream is worthless.
  // May throw std::bad_alloc.
  Next Take(Message* message, std::string* why);

  void set_frame_bytes_max(uint32_t frame_bytes_max) { frame_bytes_max_ = frame_bytes_max; }

 private:
  Next Check(const protocol::FrameHeader& header, std::string* why) const;
  Next Finish(const protocol::FrameHeader& header, std::span<const std::byte> body,
              Message* message, std::string* why);

  uint32_t frame_bytes_max_;
  std::vector<std::byte> buffer_;  // [begin_, end_) is unread
  size_t begin_ = 0;
  size_t end_ = 0;
  // Pages of a message whose last frame has not come.
  std::vector<std::byte> pages_;
  bool has_pages_ = false;
  bool is_taken_ = false;  // pages_ was handed out as a message's body
  protocol::FrameHeader pages_header_;
};

// The lower 16 bits of the id of a request whose answer nobody waits for.
inline constexpr uint16_t kUnawaitedSlot = 0xFFFF;

// A message to the daemon: the parts are concatenated.
struct Outgoing {
  protocol::Verb verb = protocol::Verb::kHello;
  uint64_t request_id = 0;
  std::array<std::span<const std::byte>, 4> parts;

  size_t body_bytes() const;
};

class FrameSender {
 public:
  explicit FrameSender(uint32_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

  // Sends, or keeps what the socket does not take now. kBusy if more than `unsent_bytes_max` would
  // be kept; then nothing of the message is sent. kGone if the connection is broken, or is now
  // because memory for the rest of a begun message is lacking.
  Status Send(int fd, const Outgoing& message, uint64_t unsent_bytes_max);
  // kOk when nothing is left, kBusy if something is, kGone if the connection is broken.
  Status Flush(int fd);

  size_t unsent_bytes() const { return unsent_.size() - unsent_begin_; }

 private:
  uint32_t frame_bytes_max_;
  std::vector<std::byte> unsent_;
  size_t unsent_begin_ = 0;
};

// Object representations, for structs whose layout is the protocol's.
template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

// Reads structs off the front of a body. A read past the end fails and leaves the target alone.
class BodyReader {
 public:
  explicit BodyReader(std::span<const std::byte> body) : rest_(body) {}

  template <typename T>
  [[nodiscard]] bool Read(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return ReadArray(std::span(value, 1));
  }
  template <typename T>
  [[nodiscard]] bool ReadArray(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < values.size_bytes()) return false;
    if (!values.empty()) std::memcpy(values.data(), rest_.data(), values.size_bytes());
    rest_ = rest_.subspan(values.size_bytes());
    return true;
  }

  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace terrace::client
