// Replies of a Redis server (RESP2), and the reader that takes them out of a stream of bytes. The
// body of a payload goes from the socket straight to the caller's memory, be it one value or the
// values of an array; everything else is small and parsed by hiredis, with objects of ours.
//
// The reader says where the next bytes are wanted (Gather), is told how many came (Received), and
// hands complete replies to its sink. What a payload's reply begins with is known beforehand: the
// bytes behind that are wanted where they belong before the beginning has been seen. Replies have
// no names: they belong to the commands in order, so after an error nothing that follows can be
// believed, and the connection must go.
//
// Pure: no I/O.
// LIMITS: kRedisReplyBytesMax of a reply that is not a payload; a fixed scratch buffer.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/status.h"
#include "terrace/units.h"

struct redisReader;

namespace terrace {

inline constexpr uint64_t kRedisReplyBytesMax = kMiB;
inline constexpr uint64_t kRedisReplyElementsMax = 64 * 1024;
// A payload longer than was expected is read past, up to here.
inline constexpr uint64_t kRedisSkippedBytesMax = 16 * kMiB;

struct RedisReply {
  enum class Kind : uint8_t {
    kNil,
    kStatus,
    kError,
    kInteger,
    kString,
    kArray,
    // Of one value: `integer` bytes; they are in the caller's memory if it had exactly that length.
    // Of fields: `text` is the last, `integer` bytes of the others are where they belong.
    kPayload,
  };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;
  std::vector<RedisReply> elements;
};

// It answers a write that was done: "OK", a number, a transaction that begins with one. What is
// neither that nor an error says nothing.
bool IsWriteDone(const RedisReply& reply);

// Where the payload of a reply belongs.
struct RedisPayloadPlace {
  enum class Shape : uint8_t {
    kNone,
    kValue,   // one value, as long as `into`
    kFields,  // an array: values of `field_bytes` that fill `into` in a row, then a small value
  };
  Shape shape = Shape::kNone;
  std::span<std::byte> into;
  std::span<const uint32_t> field_bytes;
};

class RedisReplySink {
 public:
  virtual ~RedisReplySink() = default;
  // Whether a reply is due.
  virtual bool IsReplyDue() const = 0;
  // Of the reply now due; it stays until OnReply.
  virtual RedisPayloadPlace PayloadPlace() = 0;
  virtual void OnReply(RedisReply reply) = 0;
};

class RedisReplyReader {
 public:
  explicit RedisReplyReader(RedisReplySink* sink);
  ~RedisReplyReader();
  RedisReplyReader(const RedisReplyReader&) = delete;
  RedisReplyReader& operator=(const RedisReplyReader&) = delete;

  // The places of the next bytes, in order; at least one, none empty.
  std::span<const iovec> Gather();
  // `count_bytes` came, at most as many as there was room for. kCorrupt: this is no RESP, or not
  // what was asked for; kNoSpace: the reply due is beyond any limit. The reader is of no more use.
  Status Received(uint64_t count_bytes);

 private:
  enum class Mode : uint8_t { kBoundary, kReply, kField, kPayload, kSkip, kPayloadEnd };

  struct FreeReader {
    void operator()(redisReader* reader) const;
  };

  // Each takes bytes from the scratch. False: more must come first.
  Result<bool> Step();
  Result<bool> StepBoundary();
  Result<bool> StepReply();
  Result<bool> StepField();
  Result<bool> StepPayloadEnd();
  // A line of `kind` and a number.
  Result<bool> TakeNumber(char kind, int64_t* number);
  Status BeginPayload(uint64_t length_bytes, std::span<std::byte> target);
  bool LookAhead();
  uint64_t TakeAhead(uint64_t count_bytes);
  void BeginFields();
  std::span<std::byte> NextFieldPlace();
  void EndField();
  void TakeBody();
  std::string_view Scratched() const;
  void Compact();

  RedisReplySink* const sink_;
  std::unique_ptr<redisReader, FreeReader> reader_;
  Mode mode_ = Mode::kBoundary;
  std::span<std::byte> target_;  // what is missing of it
  uint64_t skip_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
  uint64_t reply_bytes_ = 0;  // fed to reader_ of the present reply
  RedisPayloadPlace place_;   // of the present reply
  std::string ahead_;         // what its reply begins with if it is as expected; none: not read so
  size_t field_index_ = 0;    // of an array's values, the small one last
  std::string field_text_;    // the small one
  uint64_t landed_bytes_ = 0;
  bool has_field_ = false;
  std::vector<char> scratch_;
  size_t begin_ = 0, end_ = 0;  // of what came and is not used yet
  std::array<iovec, 3> places_{};
};

}  // namespace terrace
