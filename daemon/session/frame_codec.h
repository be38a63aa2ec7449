// Frames to messages and back. A FrameAssembler turns the bytes of one connection into whole
// messages, judging every header before it believes it; a Reply is cut into frames page by page, so
// that a long answer costs no turn more than one page.
//
// Nothing is allocated before its bytes are here: a header may claim what it likes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "daemon/session/message_body.h"
#include "terrace/error.h"
#include "terrace/protocol.h"
#include "terrace/units.h"

namespace terrace {

// Body bytes of one frame of a paged reply: the slots of 8,192 blocks. A page is a turn of its own,
// in which the kernel copies it: four times as many make other sessions wait half a millisecond.
inline constexpr size_t kReplyPageBytes = 96 * kKiB;
static_assert(kReplyPageBytes + sizeof(protocol::FrameHeader) <= protocol::kFrameBytesMax);

struct Message {
  protocol::Verb verb = protocol::Verb::kHello;
  uint64_t request_id = 0;
  MessageBody body;
};

// INVARIANT: holds at most one begun message, of at most kMessageBytesMax bytes.
class FrameAssembler {
 public:
  enum class Outcome { kMessage, kNeedsMore, kMalformed };

  // Consumes bytes from the front of *input until a message is whole, the input is used up, or a
  // frame is malformed; then error() says how, and nothing further may be read from this
  // connection. A message may borrow from *input's bytes.
  Outcome Next(std::span<const std::byte>* input, Message* message);
  const Error& error() const { return error_; }

  // Memory of a begun message, for accounting.
  size_t buffered_bytes() const { return body_.owned_bytes(); }
  // Request id of the frame last looked at, for the reply that refuses it.
  uint64_t last_request_id() const { return header_.request_id; }
  protocol::Verb last_verb() const { return header_.verb; }

 private:
  Error CheckHeader() const;
  Outcome EndFrame(Message* message);

  std::array<std::byte, sizeof(protocol::FrameHeader)> header_bytes_;
  size_t header_have_bytes_ = 0;
  size_t body_left_bytes_ = 0;  // of the frame under way
  protocol::FrameHeader header_;
  bool is_paging_ = false;  // pages of a message came before this frame
  protocol::FrameHeader first_page_;
  MessageBody body_;
  Error error_;
};

// One answer: a fixed head and up to three arrays that stay where they are until the last page is
// cut.
class Reply {
 public:
  void Begin(protocol::Verb verb, uint64_t request_id, uint64_t boot_id, Status status);
  template <typename T>
  void AddHead(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    AddHeadBytes(std::as_bytes(std::span<const T>(&value, 1)));
  }
  // An error's sentence, cut to kErrorTextBytesMax.
  void AddText(std::string_view text);
  // REQUIRES: `values` stays until the last page is cut.
  template <typename T>
  void AddArray(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    AddArrayBytes(std::as_bytes(values));
  }

  size_t body_bytes() const { return body_bytes_; }
  // Heads, behind the prefix.
  size_t head_bytes() const { return head_bytes_ - sizeof(protocol::ReplyPrefix); }
  bool is_ok() const { return status_ == StatusCode::kOk; }
  StatusCode status() const { return status_; }
  bool is_done() const { return is_begun_ && cut_bytes_ == body_bytes_; }
  // Appends the next frame of at most kReplyPageBytes body bytes to `output`. REQUIRES: !is_done().
  void AppendPage(std::vector<std::byte>* output);

 private:
  void AddHeadBytes(std::span<const std::byte> bytes);
  void AddArrayBytes(std::span<const std::byte> bytes);

  static constexpr size_t kHeadBytesMax =
      sizeof(protocol::ReplyPrefix) + protocol::kErrorTextBytesMax;
  std::array<std::byte, kHeadBytesMax> head_;
  size_t head_bytes_ = 0;
  std::array<std::span<const std::byte>, 3> arrays_;
  size_t array_count_ = 0;
  size_t body_bytes_ = 0;
  size_t cut_bytes_ = 0;
  bool is_begun_ = false;
  StatusCode status_ = StatusCode::kInvalid;
  protocol::Verb verb_ = protocol::Verb::kHello;
  uint64_t request_id_ = 0;
};

}  // namespace terrace
