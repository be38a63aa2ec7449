#include "tiers/redis_reply.h"

#include <hiredis/read.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace terrace {
namespace {

constexpr size_t kScratchBytes = 64 * kKiB;
constexpr std::string_view kLineEnd = "\r\n";
constexpr size_t kLengthDigitsMax = 10;

// hiredis builds a tree of objects through these; a child is placed in its parent's elements.
RedisReply* PlaceFor(const redisReadTask* task) {
  if (task->parent == nullptr) return new RedisReply;
  auto* const parent = static_cast<RedisReply*>(task->parent->obj);
  return &parent->elements[static_cast<size_t>(task->idx)];
}

void* CreateString(const redisReadTask* task, char* text, size_t length) {
  RedisReply* const reply = PlaceFor(task);
  reply->kind = task->type == REDIS_REPLY_ERROR    ? RedisReply::Kind::kError
                : task->type == REDIS_REPLY_STATUS ? RedisReply::Kind::kStatus
                                                   : RedisReply::Kind::kString;
  reply->text.assign(text, length);
  return reply;
}

void* CreateArray(const redisReadTask* task, int count) {
  if (count < 0 || static_cast<uint64_t>(count) > kRedisReplyElementsMax) return nullptr;
  RedisReply* const reply = PlaceFor(task);
  reply->kind = RedisReply::Kind::kArray;
  reply->elements.resize(static_cast<size_t>(count));
  return reply;
}

void* CreateInteger(const redisReadTask* task, long long value) {
  RedisReply* const reply = PlaceFor(task);
  reply->kind = RedisReply::Kind::kInteger;
  reply->integer = value;
  return reply;
}

void* CreateNil(const redisReadTask* task) { return PlaceFor(task); }

void FreeRoot(void* root) { delete static_cast<RedisReply*>(root); }

redisReplyObjectFunctions object_functions = {CreateString, CreateArray, CreateInteger, CreateNil,
                                              FreeRoot};

Status NotResp(const char* what) { return Status(StatusCode::kCorrupt, what); }

}  // namespace

void RedisReplyReader::FreeReader::operator()(redisReader* reader) const {
  redisReaderFree(reader);
}

RedisReplyReader::RedisReplyReader(RedisReplySink* sink)
    : sink_(sink),
      reader_(redisReaderCreateWithFunctions(&object_functions)),
      scratch_(kScratchBytes) {
  TERRACE_CHECK(reader_ != nullptr, "no memory for a reader of replies");
}

RedisReplyReader::~RedisReplyReader() = default;

std::span<const iovec> RedisReplyReader::Gather() {
  Compact();
  size_t count = 0;
  if (mode_ == Mode::kPayload && !target_.empty()) {
    places_[count++] = {target_.data(), target_.size()};
  }
  places_[count++] = {scratch_.data() + end_, scratch_.size() - end_};
  return std::span(places_).first(count);
}

Status RedisReplyReader::Received(uint64_t count_bytes) {
  if (mode_ == Mode::kPayload) {
    const size_t direct_bytes = std::min<size_t>(count_bytes, target_.size());
    target_ = target_.subspan(direct_bytes);
    count_bytes -= direct_bytes;
  }
  end_ += count_bytes;
  TERRACE_CHECK(end_ <= scratch_.size(), "more came than there was room for");
  for (;;) {
    const Result<bool> has_moved = Step();
    if (!has_moved.ok()) return has_moved.status();
    if (!*has_moved) return Status::Ok();
  }
}

Result<bool> RedisReplyReader::Step() {
  switch (mode_) {
    case Mode::kBoundary:
      return StepBoundary();
    case Mode::kReply:
      return StepReply();
    case Mode::kPayload:
    case Mode::kSkip:
      TakeBody();
      if (!target_.empty() || skip_bytes_ > 0) return false;
      mode_ = Mode::kPayloadEnd;
      return true;
    case Mode::kPayloadEnd:
      return StepPayloadEnd();
  }
  return NotResp("unreachable");
}

Result<bool> RedisReplyReader::StepBoundary() {
  const std::string_view text = Scratched();
  if (text.empty()) return false;
  if (!sink_->IsReplyDue()) return NotResp("a Redis server answered what nobody asked");
  const std::span<std::byte> target = sink_->PayloadTarget();
  reply_bytes_ = 0;
  if (target.empty() || text.front() != '$') {
    mode_ = Mode::kReply;
    return true;
  }
  const size_t line_end = text.find(kLineEnd);
  if (line_end == std::string_view::npos) {
    if (text.size() > 1 + kLengthDigitsMax + 1) return NotResp("a length that does not end");
    return false;
  }
  int64_t length = 0;
  const char* const last = text.data() + line_end;
  const auto [end, error] = std::from_chars(text.data() + 1, last, length);
  if (error != std::errc() || end != last || length < -1) return NotResp("not a length");
  begin_ += line_end + kLineEnd.size();
  if (length == -1) {
    sink_->OnReply(RedisReply{});
    return true;
  }
  payload_bytes_ = static_cast<uint64_t>(length);
  if (payload_bytes_ == target.size()) {
    target_ = target;
    mode_ = Mode::kPayload;
    return true;
  }
  if (payload_bytes_ > kRedisSkippedBytesMax) return NotResp("a value beyond any limit");
  skip_bytes_ = payload_bytes_;
  mode_ = Mode::kSkip;
  return true;
}

// A reply ends where a line ends, and every line end ends a piece: hiredis is never fed past the
// end of a reply.
Result<bool> RedisReplyReader::StepReply() {
  const std::string_view text = Scratched();
  const size_t line_end = text.find(kLineEnd);
  size_t piece_bytes = line_end + kLineEnd.size();
  if (line_end == std::string_view::npos) {
    if (begin_ > 0 || end_ < scratch_.size()) return false;
    piece_bytes = text.size() - 1;  // the last byte may be half of a line end
  }
  reply_bytes_ += piece_bytes;
  if (reply_bytes_ > kRedisReplyBytesMax) return NotResp("a reply beyond any limit");
  void* root = nullptr;
  if (redisReaderFeed(reader_.get(), text.data(), piece_bytes) != REDIS_OK ||
      redisReaderGetReply(reader_.get(), &root) != REDIS_OK) {
    return NotResp("not RESP");
  }
  begin_ += piece_bytes;
  if (root == nullptr) return true;
  const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(root));
  mode_ = Mode::kBoundary;
  sink_->OnReply(std::move(*reply));
  return true;
}

Result<bool> RedisReplyReader::StepPayloadEnd() {
  const std::string_view text = Scratched();
  if (text.size() < kLineEnd.size()) return false;
  if (!text.starts_with(kLineEnd)) return NotResp("a value longer than its length");
  begin_ += kLineEnd.size();
  mode_ = Mode::kBoundary;
  sink_->OnReply(RedisReply{.kind = RedisReply::Kind::kPayload,
                            .integer = static_cast<int64_t>(payload_bytes_)});
  return true;
}

// What lies in the scratch already goes to the target, or nowhere.
void RedisReplyReader::TakeBody() {
  const size_t copied_bytes = std::min(target_.size(), end_ - begin_);
  if (copied_bytes > 0) {
    std::memcpy(target_.data(), scratch_.data() + begin_, copied_bytes);
    target_ = target_.subspan(copied_bytes);
    begin_ += copied_bytes;
  }
  const size_t skipped_bytes = std::min<uint64_t>(skip_bytes_, end_ - begin_);
  skip_bytes_ -= skipped_bytes;
  begin_ += skipped_bytes;
}

std::string_view RedisReplyReader::Scratched() const {
  return {scratch_.data() + begin_, end_ - begin_};
}

void RedisReplyReader::Compact() {
  if (begin_ == 0) return;
  std::memmove(scratch_.data(), scratch_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
}

}  // namespace terrace
