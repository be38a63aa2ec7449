#include "tiers/redis/wire/redis_reply.h"

#include <hiredis/read.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr size_t kScratchBytes = 64 * kKiB;
// What is read beside a payload, or where one may begin, is copied once more: it is kept short.
constexpr size_t kBesidePayloadBytes = kKiB;
constexpr std::string_view kLineEnd = "\r\n";
constexpr size_t kLengthDigitsMax = 10;

// hiredis builds a tree of objects through these, depth first; a child is placed behind its
// parent's elements when it comes. What is announced costs a server a few bytes and takes none
// here; nobody points to a child's elders any more, which may move.
RedisReply* PlaceFor(const redisReadTask* task) {
  if (task->parent == nullptr) return new RedisReply;
  return &static_cast<RedisReply*>(task->parent->obj)->elements.emplace_back();
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

void AppendHead(char kind, size_t length, std::string* into) {
  into->push_back(kind);
  into->append(std::to_string(length)).append(kLineEnd);
}

Status NotResp(const char* what) { return Status(StatusCode::kCorrupt, what); }
Status TooLong() { return Status(StatusCode::kNoSpace, "a reply beyond any limit"); }

}  // namespace

bool IsWriteDone(const RedisReply& reply) {
  using Kind = RedisReply::Kind;
  if (reply.kind == Kind::kArray) {
    return !reply.elements.empty() && reply.elements.front().kind == Kind::kInteger;
  }
  return reply.kind == Kind::kInteger || (reply.kind == Kind::kStatus && reply.text == "OK");
}

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
  size_t beside_bytes = scratch_.size() - end_;
  if (LookAhead()) {
    places_[count++] = {scratch_.data(), ahead_.size()};
    places_[count++] = {target_.data(), target_.size()};
    places_[count++] = {scratch_.data() + ahead_.size(), kBesidePayloadBytes};
    return std::span(places_).first(count);
  }
  if (mode_ == Mode::kPayload && !target_.empty()) {
    places_[count++] = {target_.data(), target_.size()};
  }
  if (mode_ != Mode::kBoundary && mode_ != Mode::kReply && mode_ != Mode::kSkip) {
    beside_bytes = std::min(beside_bytes, kBesidePayloadBytes);
  }
  places_[count++] = {scratch_.data() + end_, beside_bytes};
  return std::span(places_).first(count);
}

Status RedisReplyReader::Received(uint64_t count_bytes) {
  if (!ahead_.empty()) {
    count_bytes = TakeAhead(count_bytes);
  } else if (mode_ == Mode::kPayload) {
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

// True: a payload is due whose first bytes have a place, and what comes before them is in ahead_.
bool RedisReplyReader::LookAhead() {
  ahead_.clear();  // of a look whose read brought nothing
  if (mode_ != Mode::kBoundary || end_ > 0 || !sink_->IsReplyDue()) return false;
  place_ = sink_->PayloadPlace();
  target_ = {};
  if (place_.shape == RedisPayloadPlace::Shape::kValue) {
    target_ = place_.into;
  } else if (place_.shape == RedisPayloadPlace::Shape::kFields && !place_.field_bytes.empty()) {
    target_ = place_.into.first(place_.field_bytes.front());
  }
  if (target_.empty()) return false;
  if (place_.shape == RedisPayloadPlace::Shape::kFields) {
    AppendHead('*', 1 + place_.field_bytes.size(), &ahead_);
  }
  AppendHead('$', target_.size(), &ahead_);
  return true;
}

// Returns how many of the bytes are new in the scratch.
uint64_t RedisReplyReader::TakeAhead(uint64_t count_bytes) {
  const std::string ahead = std::exchange(ahead_, {});
  const std::span<std::byte> target = std::exchange(target_, {});
  if (count_bytes <= ahead.size()) return count_bytes;
  const uint64_t direct_bytes = std::min(count_bytes - ahead.size(), target.size());
  const uint64_t beside_bytes = count_bytes - ahead.size() - direct_bytes;
  if (std::string_view(scratch_.data(), ahead.size()) == ahead) {
    payload_bytes_ = target.size();
    target_ = target.subspan(direct_bytes);
    if (place_.shape == RedisPayloadPlace::Shape::kFields) {
      BeginFields();
      NextFieldPlace();
      has_field_ = true;
      landed_bytes_ = target.size();
    }
    mode_ = Mode::kPayload;
    begin_ = end_ = ahead.size();
    return beside_bytes;
  }
  // Something else came: all of it belongs in the scratch, in a row.
  scratch_.resize(std::max(scratch_.size(), count_bytes));
  std::memmove(scratch_.data() + ahead.size() + direct_bytes, scratch_.data() + ahead.size(),
               beside_bytes);
  std::memcpy(scratch_.data() + ahead.size(), target.data(), direct_bytes);
  return count_bytes;
}

Result<bool> RedisReplyReader::Step() {
  switch (mode_) {
    case Mode::kBoundary:
      return StepBoundary();
    case Mode::kReply:
      return StepReply();
    case Mode::kField:
      return StepField();
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

Result<bool> RedisReplyReader::TakeNumber(char kind, int64_t* number) {
  const std::string_view text = Scratched();
  if (text.empty()) return false;
  if (text.front() != kind) return NotResp("another kind of value than was asked for");
  const size_t line_end = text.find(kLineEnd);
  if (line_end == std::string_view::npos) {
    if (text.size() > 1 + kLengthDigitsMax + 1) return NotResp("a length that does not end");
    return false;
  }
  const char* const last = text.data() + line_end;
  const auto [end, error] = std::from_chars(text.data() + 1, last, *number);
  if (error != std::errc() || end != last || *number < -1) return NotResp("not a length");
  begin_ += line_end + kLineEnd.size();
  return true;
}

// What has another length than its place is read past.
Status RedisReplyReader::BeginPayload(uint64_t length_bytes, std::span<std::byte> target) {
  payload_bytes_ = length_bytes;
  if (length_bytes == target.size()) {
    target_ = target;
    mode_ = Mode::kPayload;
    return Status::Ok();
  }
  if (length_bytes > kRedisSkippedBytesMax) return TooLong();
  skip_bytes_ = length_bytes;
  mode_ = Mode::kSkip;
  return Status::Ok();
}

Result<bool> RedisReplyReader::StepBoundary() {
  using Shape = RedisPayloadPlace::Shape;
  const std::string_view text = Scratched();
  if (text.empty()) return false;
  if (!sink_->IsReplyDue()) return NotResp("a Redis server answered what nobody asked");
  place_ = sink_->PayloadPlace();
  reply_bytes_ = 0;
  const bool is_value = place_.shape == Shape::kValue && text.front() == '$';
  const bool is_fields = place_.shape == Shape::kFields && text.front() == '*';
  if (!is_value && !is_fields) {
    mode_ = Mode::kReply;
    return true;
  }
  int64_t length = 0;
  const Result<bool> has_length = TakeNumber(text.front(), &length);
  if (!has_length.ok() || !*has_length) return has_length;
  if (is_fields) {
    if (length != static_cast<int64_t>(1 + place_.field_bytes.size())) {
      return NotResp("another number of fields than was asked for");
    }
    BeginFields();
    mode_ = Mode::kField;
    return true;
  }
  if (length == -1) {
    sink_->OnReply(RedisReply{});
    return true;
  }
  TERRACE_RETURN_IF_ERROR(BeginPayload(static_cast<uint64_t>(length), place_.into));
  return true;
}

void RedisReplyReader::BeginFields() {
  field_index_ = 0;
  field_text_.clear();
  landed_bytes_ = 0;
  has_field_ = false;
}

std::span<std::byte> RedisReplyReader::NextFieldPlace() {
  TERRACE_CHECK(field_index_ < place_.field_bytes.size() &&
                    place_.field_bytes[field_index_] <= place_.into.size(),
                "who asks gives each field its place, whatever the server says of its length");
  const size_t length_bytes = place_.field_bytes[field_index_];
  const std::span<std::byte> place = place_.into.first(length_bytes);
  place_.into = place_.into.subspan(length_bytes);
  return place;
}

Result<bool> RedisReplyReader::StepField() {
  int64_t length = 0;
  const Result<bool> has_length = TakeNumber('$', &length);
  if (!has_length.ok() || !*has_length) return has_length;
  const bool is_last = field_index_ == place_.field_bytes.size();
  std::span<std::byte> target = is_last ? std::span<std::byte>() : NextFieldPlace();
  if (length == -1) {
    EndField();
    return true;
  }
  has_field_ = true;
  const auto length_bytes = static_cast<uint64_t>(length);
  if (is_last) {
    if (length_bytes > kRedisReplyBytesMax) return TooLong();
    field_text_.resize(length_bytes);
    target = std::as_writable_bytes(std::span(field_text_));
  } else if (length_bytes == target.size()) {
    landed_bytes_ += length_bytes;
  }
  TERRACE_RETURN_IF_ERROR(BeginPayload(length_bytes, target));
  return true;
}

void RedisReplyReader::EndField() {
  mode_ = Mode::kField;
  if (field_index_++ < place_.field_bytes.size()) return;
  mode_ = Mode::kBoundary;
  if (!has_field_) {
    sink_->OnReply(RedisReply{});
    return;
  }
  sink_->OnReply(RedisReply{.kind = RedisReply::Kind::kPayload,
                            .integer = static_cast<int64_t>(landed_bytes_),
                            .text = std::move(field_text_)});
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
  if (reply_bytes_ > kRedisReplyBytesMax) return TooLong();
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
  if (place_.shape == RedisPayloadPlace::Shape::kFields) {
    EndField();
    return true;
  }
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
