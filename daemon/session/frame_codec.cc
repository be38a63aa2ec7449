#include "daemon/session/frame_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/session/verb_table.h"
#include "terrace/check.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

using protocol::FrameHeader;
using protocol::Verb;

Error FrameAssembler::CheckHeader() const {
  const FrameHeader& header = header_;
  const auto refuse = [](std::string sentence) {
    return Error(StatusCode::kInvalid, std::move(sentence));
  };
  if (header.frame_bytes < sizeof(FrameHeader) || header.frame_bytes > protocol::kFrameBytesMax) {
    return refuse("frame of " + std::to_string(header.frame_bytes) + " bytes; the limits are " +
                  std::to_string(sizeof(FrameHeader)) + " and " +
                  std::to_string(protocol::kFrameBytesMax) + ": page longer messages");
  }
  if (header.version < protocol::kVersionMin || header.version > protocol::kVersion) {
    return refuse("frame version " + std::to_string(header.version) + "; this daemon speaks " +
                  std::to_string(protocol::kVersionMin) + " to " +
                  std::to_string(protocol::kVersion) + ": say so in Hello");
  }
  if (FindVerb(header.verb) == nullptr) {
    return refuse("verb " + std::to_string(static_cast<unsigned>(header.verb)) +
                  " is none that a client sends; they are 1 to " +
                  std::to_string(static_cast<unsigned>(protocol::kVerbLast)));
  }
  if ((header.flags & ~protocol::kFrameMore) != 0) {
    return refuse("frame flags " + std::to_string(header.flags) + "; only 1 (more) is defined");
  }
  if (header.request_id == 0) return refuse("request id 0; choose another");
  const size_t body_bytes = header.frame_bytes - sizeof(FrameHeader);
  if ((header.flags & protocol::kFrameMore) != 0 && body_bytes == 0) {
    return refuse("an empty page that is not the last of its message");
  }
  if (is_paging_ &&
      (header.verb != first_page_.verb || header.request_id != first_page_.request_id)) {
    return refuse("a page of " + std::string(VerbName(header.verb)) + " request " +
                  std::to_string(header.request_id) + " within " +
                  std::string(VerbName(first_page_.verb)) + " request " +
                  std::to_string(first_page_.request_id) + ": end a message before the next");
  }
  if (body_.size_bytes() + body_bytes > protocol::kMessageBytesMax) {
    return refuse("a message of more than " + std::to_string(protocol::kMessageBytesMax) +
                  " bytes: split the request");
  }
  return {};
}

FrameAssembler::Outcome FrameAssembler::EndFrame(Message* message) {
  header_have_bytes_ = 0;
  if ((header_.flags & protocol::kFrameMore) != 0) {
    is_paging_ = true;
    first_page_ = header_;
    return Outcome::kNeedsMore;
  }
  is_paging_ = false;
  message->verb = header_.verb;
  message->request_id = header_.request_id;
  message->body = std::move(body_);
  return Outcome::kMessage;
}

FrameAssembler::Outcome FrameAssembler::Next(std::span<const std::byte>* input, Message* message) {
  while (true) {
    if (header_have_bytes_ < sizeof(FrameHeader)) {
      if (input->empty()) return Outcome::kNeedsMore;
      const size_t step_bytes = std::min(input->size(), sizeof(FrameHeader) - header_have_bytes_);
      std::memcpy(header_bytes_.data() + header_have_bytes_, input->data(), step_bytes);
      header_have_bytes_ += step_bytes;
      *input = input->subspan(step_bytes);
      if (header_have_bytes_ < sizeof(FrameHeader)) return Outcome::kNeedsMore;
      std::memcpy(&header_, header_bytes_.data(), sizeof(FrameHeader));
      if (Error error = CheckHeader(); !error.ok()) {
        error_ = std::move(error);
        return Outcome::kMalformed;
      }
      body_left_bytes_ = header_.frame_bytes - sizeof(FrameHeader);
    }
    const size_t step_bytes = std::min(input->size(), body_left_bytes_);
    const std::span<const std::byte> piece = input->first(step_bytes);
    *input = input->subspan(step_bytes);
    const bool is_whole_message = body_.size_bytes() == 0 && step_bytes == body_left_bytes_ &&
                                  (header_.flags & protocol::kFrameMore) == 0;
    if (is_whole_message) {
      body_.Borrow(piece);
    } else {
      body_.Append(piece);
    }
    body_left_bytes_ -= step_bytes;
    if (body_left_bytes_ > 0) return Outcome::kNeedsMore;
    if (EndFrame(message) == Outcome::kMessage) return Outcome::kMessage;
  }
}

void Reply::Begin(Verb verb, uint64_t request_id, uint64_t boot_id, Status status) {
  head_bytes_ = array_count_ = body_bytes_ = cut_bytes_ = 0;
  is_begun_ = true;
  status_ = status.code();
  verb_ = verb;
  request_id_ = request_id;
  AddHead(protocol::ReplyPrefix{.boot_id = boot_id,
                                .status = static_cast<uint8_t>(status.code()),
                                .detail = status.detail()});
}

void Reply::AddHeadBytes(std::span<const std::byte> bytes) {
  TERRACE_CHECK(bytes.size() <= head_.size() - head_bytes_ && array_count_ == 0,
                "heads are fixed structs and come before arrays");
  std::memcpy(head_.data() + head_bytes_, bytes.data(), bytes.size());
  head_bytes_ += bytes.size();
  body_bytes_ += bytes.size();
}

void Reply::AddText(std::string_view text) {
  // Cut between characters: a UTF-8 continuation byte is 10xxxxxx.
  size_t text_bytes = std::min<size_t>(text.size(), protocol::kErrorTextBytesMax);
  if (text_bytes < text.size()) {
    while (text_bytes > 0 && (text[text_bytes] & 0xC0) == 0x80) --text_bytes;
  }
  AddHeadBytes(std::as_bytes(std::span(text.data(), text_bytes)));
}

void Reply::AddArrayBytes(std::span<const std::byte> bytes) {
  TERRACE_CHECK(array_count_ < arrays_.size(), "no reply has more arrays");
  arrays_[array_count_++] = bytes;
  body_bytes_ += bytes.size();
}

void Reply::AppendPage(std::vector<std::byte>* output) {
  TERRACE_CHECK(is_begun_ && !is_done(), "a reply is cut until its last page");
  const size_t page_bytes = std::min(body_bytes_ - cut_bytes_, kReplyPageBytes);
  const size_t end_bytes = cut_bytes_ + page_bytes;
  FrameHeader header{.frame_bytes = static_cast<uint32_t>(sizeof(FrameHeader) + page_bytes),
                     .verb = verb_,
                     .flags = end_bytes < body_bytes_ ? protocol::kFrameMore : uint16_t{0},
                     .request_id = request_id_};
  const auto* header_bytes = reinterpret_cast<const std::byte*>(&header);
  // Twofold at least: many small frames are appended in one turn.
  const size_t output_bytes = output->size() + header.frame_bytes;
  if (output_bytes > output->capacity()) {
    output->reserve(std::max(output_bytes, 2 * output->capacity()));
  }
  output->insert(output->end(), header_bytes, header_bytes + sizeof(header));
  // Walks the pieces, of which [begin, begin + size) of the body lies in each.
  size_t begin_bytes = 0;
  const auto append = [&](std::span<const std::byte> piece) {
    const size_t from = std::max(cut_bytes_, begin_bytes);
    const size_t to = std::min(end_bytes, begin_bytes + piece.size());
    if (from < to) {
      output->insert(output->end(), piece.data() + (from - begin_bytes),
                     piece.data() + (to - begin_bytes));
    }
    begin_bytes += piece.size();
  };
  append(std::span<const std::byte>(head_.data(), head_bytes_));
  for (size_t i = 0; i < array_count_; ++i) append(arrays_[i]);
  cut_bytes_ = end_bytes;
}

}  // namespace terrace
