#include "client/link/frames.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "client/link/cancel_deferred.h"
#include "terrace/protocol_device.h"

namespace terrace::client {
namespace {

using protocol::FrameHeader;
using protocol::ReplyPrefix;
using protocol::Verb;

constexpr size_t kReceiveBytesMin = 64 << 10;

bool IsUnasked(Verb verb) {
  return verb >= Verb::kCompletion && verb <= protocol::kVerbPinTurnBegins;
}
bool IsAnswer(Verb verb) {
  return (verb >= Verb::kHello && verb <= Verb::kUnmapped) || verb == protocol::kVerbDeviceAttach ||
         verb == protocol::kVerbOrderDone || verb == protocol::kVerbPinTurn ||
         verb == protocol::kVerbDeviceReport;
}

// A message's body as it is cut into frames.
class PartCursor {
 public:
  explicit PartCursor(const Outgoing& message) : parts_(message.parts) {}

  // Appends the next `byte_count` bytes to `iov`; returns the number of entries used.
  int Take(size_t byte_count, iovec* iov) {
    int used = 0;
    while (byte_count > 0) {
      std::span<const std::byte>& part = parts_[index_];
      const size_t piece_bytes = std::min(byte_count, part.size());
      if (piece_bytes > 0) {
        iov[used++] = {const_cast<std::byte*>(part.data()), piece_bytes};
        part = part.subspan(piece_bytes);
        byte_count -= piece_bytes;
      }
      if (part.empty()) ++index_;
    }
    return used;
  }

 private:
  std::array<std::span<const std::byte>, 4> parts_;
  size_t index_ = 0;
};

// The number of bytes the socket took; 0 if it is full, −1 if it is broken.
ssize_t SendNow(int fd, iovec* iov, int iov_count) {
  msghdr message{};
  message.msg_iov = iov;
  message.msg_iovlen = static_cast<size_t>(iov_count);
  const CancelDeferred deferred;
  while (true) {
    const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? 0 : -1;
  }
}

constexpr Status kBroken(StatusCode::kGone, "the connection to the daemon is broken");

}  // namespace

Status Message::status() const {
  static constexpr const char* kWhat[kStatusCodeCount] = {
      "",
      "the daemon does not have it",
      "the daemon has these bytes already",
      "the daemon has no space",
      "the daemon is busy, or the deadline passed there",
      "the daemon refused the request",
      "the daemon found a checksum mismatch",
      "the operating system refused the daemon",
      "the lease, handle or generation is not the daemon's any more",
      "the daemon cannot do this",
  };
  return Status(static_cast<StatusCode>(prefix.status), kWhat[prefix.status], prefix.detail);
}

std::span<std::byte> FrameReader::WritableSpace() {
  size_t wanted = kReceiveBytesMin;
  if (end_ - begin_ >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
    wanted = std::max<size_t>(wanted, std::min(header.frame_bytes, frame_bytes_max_));
  }
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.size() - begin_ < wanted) {
    if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    if (buffer_.size() < wanted) buffer_.resize(wanted);
  }
  // Only if a whole frame waits to be taken.
  if (end_ == buffer_.size()) buffer_.resize(end_ + kReceiveBytesMin);
  return std::span(buffer_).subspan(end_);
}

FrameReader::Next FrameReader::Take(Message* message, std::string* why) {
  if (is_taken_) {
    pages_.clear();
    is_taken_ = false;
  }
  while (true) {
    if (end_ - begin_ < sizeof(FrameHeader)) return Next::kNeedsBytes;
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
    if (const Next checked = Check(header, why); checked != Next::kMessage) return checked;
    if (end_ - begin_ < header.frame_bytes) return Next::kNeedsBytes;
    const std::span<const std::byte> body = std::span<const std::byte>(buffer_).subspan(
        begin_ + sizeof(header), header.frame_bytes - sizeof(header));
    begin_ += header.frame_bytes;
    const bool has_more = (header.flags & protocol::kFrameMore) != 0;
    if (!has_more && !has_pages_) return Finish(header, body, message, why);
    if (pages_.size() + body.size() > protocol::kMessageBytesMax) {
      *why = "the daemon sent a message of more than " +
             std::to_string(protocol::kMessageBytesMax) + " bytes, the limit: ask for less at once";
      return Next::kGarbled;
    }
    pages_.insert(pages_.end(), body.begin(), body.end());
    has_pages_ = has_more;
    pages_header_ = header;
    if (has_more) continue;
    is_taken_ = true;
    return Finish(header, pages_, message, why);
  }
}

FrameReader::Next FrameReader::Check(const FrameHeader& header, std::string* why) const {
  const auto garbled = [why](const char* field, uint64_t value, const std::string& limit) {
    *why = std::string("the daemon sent a frame with ") + field + " " + std::to_string(value) +
           "; " + limit + ": update libterrace or terraced so that both are of one release";
    return Next::kGarbled;
  };
  if (header.frame_bytes < sizeof(FrameHeader) || header.frame_bytes > frame_bytes_max_) {
    return garbled("frame_bytes", header.frame_bytes,
                   "the limit is 16 to " + std::to_string(frame_bytes_max_));
  }
  if (header.version < protocol::kVersionMin || header.version > protocol::kVersion) {
    return garbled("version", header.version,
                   "this library speaks up to " + std::to_string(protocol::kVersion));
  }
  if (!IsUnasked(header.verb) && !IsAnswer(header.verb)) {
    return garbled("verb", static_cast<uint64_t>(header.verb), "no such verb is known");
  }
  if ((header.flags & ~protocol::kFrameMore) != 0) {
    return garbled("flags", header.flags, "only flag 1 is known");
  }
  if (has_pages_ &&
      (header.verb != pages_header_.verb || header.request_id != pages_header_.request_id)) {
    return garbled(
        "request id", header.request_id,
        "the pages of request " + std::to_string(pages_header_.request_id) + " were not finished");
  }
  return Next::kMessage;
}

FrameReader::Next FrameReader::Finish(const FrameHeader& header, std::span<const std::byte> body,
                                      Message* message, std::string* why) {
  BodyReader reader(body);
  if (!reader.Read(&message->prefix)) {
    *why = "the daemon sent a message of " + std::to_string(body.size()) +
           " bytes; every one starts with 16: update libterrace or terraced";
    return Next::kGarbled;
  }
  if (message->prefix.status >= kStatusCodeCount || message->prefix.boot_id == 0) {
    *why = "the daemon sent status " + std::to_string(message->prefix.status) + ", boot id " +
           std::to_string(message->prefix.boot_id) +
           "; no such status or boot id can be: update libterrace or terraced";
    return Next::kGarbled;
  }
  message->verb = header.verb;
  message->request_id = header.request_id;
  message->body = reader.rest();
  return Next::kMessage;
}

size_t Outgoing::body_bytes() const {
  size_t total = 0;
  for (const auto& part : parts) total += part.size();
  return total;
}

Status FrameSender::Send(int fd, const Outgoing& message, uint64_t unsent_bytes_max) {
  const size_t page_bytes_max = frame_bytes_max_ - sizeof(FrameHeader);
  size_t left_bytes = message.body_bytes();
  const size_t frame_count =
      std::max<size_t>(1, (left_bytes + page_bytes_max - 1) / page_bytes_max);
  if (unsent_bytes() + left_bytes + frame_count * sizeof(FrameHeader) > unsent_bytes_max) {
    return Status(StatusCode::kBusy,
                  "send_buffer_bytes_max are unsent: the daemon reads too slowly");
  }
  if (unsent_bytes() > 0 && Flush(fd).code() == StatusCode::kGone) return kBroken;
  PartCursor cursor(message);
  for (size_t frame = 0; frame < frame_count; ++frame) {
    FrameHeader header;
    const size_t page_bytes = std::min(left_bytes, page_bytes_max);
    left_bytes -= page_bytes;
    header.frame_bytes = static_cast<uint32_t>(sizeof(header) + page_bytes);
    header.verb = message.verb;
    header.flags = frame + 1 < frame_count ? protocol::kFrameMore : 0;
    header.request_id = message.request_id;
    iovec iov[1 + 2 * std::tuple_size_v<decltype(message.parts)>];
    iov[0] = {&header, sizeof(header)};
    const int iov_count = 1 + cursor.Take(page_bytes, iov + 1);
    ssize_t sent = unsent_bytes() > 0 ? 0 : SendNow(fd, iov, iov_count);
    if (sent < 0) return kBroken;
    try {
      for (int i = 0; i < iov_count; ++i) {
        const auto* bytes = static_cast<const std::byte*>(iov[i].iov_base);
        const size_t skipped = std::min<size_t>(static_cast<size_t>(sent), iov[i].iov_len);
        sent -= static_cast<ssize_t>(skipped);
        unsent_.insert(unsent_.end(), bytes + skipped, bytes + iov[i].iov_len);
      }
    } catch (const std::bad_alloc&) {
      return kBroken;
    }
  }
  return Status::Ok();
}

Status FrameSender::Flush(int fd) {
  while (unsent_bytes() > 0) {
    iovec iov{unsent_.data() + unsent_begin_, unsent_bytes()};
    const ssize_t sent = SendNow(fd, &iov, 1);
    if (sent < 0) return kBroken;
    if (sent == 0) {
      // What was sent is dropped once it is most of the buffer: each byte moves at most once.
      if (unsent_begin_ > unsent_.size() / 2) {
        unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(unsent_begin_));
        unsent_begin_ = 0;
      }
      return Status(StatusCode::kBusy, "the socket is full");
    }
    unsent_begin_ += static_cast<size_t>(sent);
  }
  unsent_.clear();
  unsent_begin_ = 0;
  return Status::Ok();
}

}  // namespace terrace::client
