// Replies of a Redis server, in pieces of any size, to commands of every shape: what is due is told
// by the input's head, the rest is the server's stream.
#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "fuzz/fuzz.h"
#include "terrace/units.h"
#include "tiers/redis/wire/redis_reply.h"

namespace terrace::fuzz::redis_reply {

constexpr size_t kDueMax = 8;
constexpr size_t kFieldsMax = 4;
constexpr uint32_t kPlaceBytesMax = 5'000;
// The reader's scratch, hiredis' own buffer, and the last field's text, which has a place as soon
// as its length is known; and an element of an array of three bytes or more is an object of ours.
constexpr uint64_t kHeapBytesMax = 96 * kKiB + kRedisReplyBytesMax;
constexpr uint64_t kHeapFactor = 2 * sizeof(RedisReply);

// One reply that is due. Its places lie in memory of exactly that length.
struct Due {
  RedisPayloadPlace::Shape shape = RedisPayloadPlace::Shape::kNone;
  Bytes into;
  std::vector<uint32_t> field_bytes;
};

class Asker final : public RedisReplySink {
 public:
  bool IsReplyDue() const override { return !due_.empty(); }
  RedisPayloadPlace PayloadPlace() override {
    Require(!due_.empty(), "a place is asked for of a reply that is not due");
    Due& next = due_.front();
    return {.shape = next.shape, .into = next.into, .field_bytes = next.field_bytes};
  }
  void OnReply(RedisReply reply) override {
    Require(!due_.empty(), "a reply came that is not due");
    const Due& due = due_.front();
    if (reply.kind == RedisReply::Kind::kPayload) {
      Require(due.shape != RedisPayloadPlace::Shape::kNone, "a payload that nobody asked for");
      const auto length_bytes = static_cast<uint64_t>(reply.integer);
      Require(
          length_bytes <= (due.shape == RedisPayloadPlace::Shape::kFields ? due.into.size()
                                                                          : kRedisSkippedBytesMax),
          "a payload longer than its place");
    }
    heard_bytes_ += HeardBytes(reply);
    due_.pop_front();
  }
  void Expect(Due due) { due_.push_back(std::move(due)); }
  uint64_t heard_bytes() const { return heard_bytes_; }

 private:
  static uint64_t HeardBytes(const RedisReply& reply) {
    Require(reply.elements.size() <= kRedisReplyElementsMax, "an array beyond the limit");
    uint64_t sum_bytes = reply.text.size() + 3;
    for (const RedisReply& element : reply.elements) sum_bytes += HeardBytes(element);
    return sum_bytes;
  }

  std::deque<Due> due_;
  uint64_t heard_bytes_ = 0;
};

Due TakeDue(Choices& choices) {
  Due due;
  due.shape = static_cast<RedisPayloadPlace::Shape>(choices.Below(3));
  if (due.shape == RedisPayloadPlace::Shape::kNone) return due;
  uint32_t sum_bytes = choices.Number<uint16_t>() % kPlaceBytesMax;
  if (due.shape == RedisPayloadPlace::Shape::kFields) {
    sum_bytes = 0;
    for (uint32_t left = choices.Below(kFieldsMax + 1); left > 0; --left) {
      due.field_bytes.push_back(choices.Number<uint16_t>() % kPlaceBytesMax);
      sum_bytes += due.field_bytes.back();
    }
  }
  due.into.resize(sum_bytes);
  return due;
}

// Gives the reader the stream as a socket would, `piece_bytes` at most a read.
void Feed(RedisReplyReader* reader, std::span<const std::byte> stream, size_t piece_bytes) {
  while (!stream.empty()) {
    size_t given_bytes = 0;
    const std::span<const iovec> places = reader->Gather();
    Require(!places.empty(), "a reader that wants nothing");
    for (const iovec& place : places) {
      Require(place.iov_len > 0, "a reader that wants an empty piece");
      const size_t count = std::min({place.iov_len, piece_bytes - given_bytes, stream.size()});
      std::copy_n(stream.begin(), count, static_cast<std::byte*>(place.iov_base));
      stream = stream.subspan(count);
      given_bytes += count;
    }
    const Status status = reader->Received(given_bytes);
    if (status.ok()) continue;
    Require(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kNoSpace,
            "a stream is refused as no connection expects");
    return;
  }
}

struct SeedDue {
  RedisPayloadPlace::Shape shape = RedisPayloadPlace::Shape::kNone;
  std::vector<uint16_t> bytes;  // of kValue one, of kFields one a field
};
Seed StreamSeed(const std::string& name, const std::vector<SeedDue>& dues, std::string_view stream,
                uint16_t piece_bytes = 4'096) {
  ChoiceWriter writer;
  writer.Put<uint16_t>(static_cast<uint16_t>(piece_bytes - 1));
  writer.Byte(static_cast<uint8_t>(dues.size()));
  for (const SeedDue& due : dues) {
    writer.Byte(static_cast<uint8_t>(due.shape));
    if (due.shape == RedisPayloadPlace::Shape::kNone) continue;
    const bool is_fields = due.shape == RedisPayloadPlace::Shape::kFields;
    writer.Put<uint16_t>(is_fields ? uint16_t{0} : due.bytes.front());
    if (!is_fields) continue;
    writer.Byte(static_cast<uint8_t>(due.bytes.size()));
    for (const uint16_t bytes : due.bytes) writer.Put(bytes);
  }
  return {name, writer.Append(stream).Take()};
}

std::string Bulk(std::string_view body) {
  return "$" + std::to_string(body.size()) + "\r\n" + std::string(body) + "\r\n";
}

std::vector<Seed> Seeds() {
  constexpr auto kValue = RedisPayloadPlace::Shape::kValue;
  constexpr auto kFields = RedisPayloadPlace::Shape::kFields;
  const std::string body(300, 'x');
  const std::string fields = "*3\r\n" + Bulk(body) + Bulk("\r\n") + Bulk("what it is");
  return {
      StreamSeed("every_kind", {{}, {}, {}, {}, {}, {}},
                 "+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n*3\r\n:1\r\n*2\r\n+a\r\n$-1\r\n$2\r\n\r\n\r\n" +
                     Bulk("text")),
      StreamSeed("byte_by_byte", {{}, {}}, "*2\r\n:1\r\n" + Bulk("ab") + "+OK\r\n", 1),
      StreamSeed("value", {{kValue, {300}}, {}}, Bulk(body) + "+OK\r\n"),
      StreamSeed("value_in_pieces", {{kValue, {300}}}, Bulk(body), 7),
      StreamSeed("value_of_another_length", {{kValue, {10}}}, Bulk(body), 64),
      StreamSeed("value_is_nil", {{kValue, {10}}, {kValue, {4}}}, "$-1\r\n-WRONGTYPE x\r\n"),
      StreamSeed("fields", {{kFields, {300, 2}}}, fields),
      StreamSeed("fields_in_pieces", {{kFields, {300, 2}}}, fields, 11),
      StreamSeed("fields_nil", {{kFields, {300, 2}}}, "*3\r\n$-1\r\n$-1\r\n$-1\r\n"),
      StreamSeed("not_due", {}, "+OK\r\n"),
      StreamSeed("arrays_of_arrays", {{}}, "*2\r\n*65536\r\n*65536\r\n*65536\r\n:1\r\n"),
      StreamSeed("pushed", {{}, {}}, ">2\r\n+a\r\n:1\r\n%1\r\n+a\r\n,1.5\r\n"),
  };
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  const size_t piece_bytes = 1 + choices.Number<uint16_t>();
  Asker asker;
  for (size_t left = choices.Below(kDueMax + 1); left > 0; --left) asker.Expect(TakeDue(choices));
  const std::span<const std::byte> stream = choices.Rest();
  HeapMeter meter;
  RedisReplyReader reader(&asker);
  Feed(&reader, stream, piece_bytes);
  Require(asker.heard_bytes() <= stream.size() + 3 * kDueMax, "more was heard than was said");
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, stream.size());
  return true;
}

// PROMISE: T29 replies of Redis
const Registration registration({"redis_reply", Run, Seeds});

}  // namespace terrace::fuzz::redis_reply
