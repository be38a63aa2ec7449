#include "tiers/redis/wire/redis_stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace terrace {
namespace {

using Outcome = RedisStreamResult::Outcome;

class PlainStream : public RedisStream {
 public:
  explicit PlainStream(int fd) : fd_(fd) {}

  RedisStreamResult Handshake() override { return {.outcome = Outcome::kMoved}; }

  RedisStreamResult Read(std::span<const iovec> places) override {
    msghdr message = MessageOf(places);
    ssize_t count = 0;
    do {
      count = recvmsg(fd_, &message, MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count == 0) return {.outcome = Outcome::kEnded};
    return ResultOf(count, Outcome::kWantsRead);
  }

  bool IsDrainedByShortReads() const override { return true; }

  RedisStreamResult Write(std::span<const iovec> pieces) override {
    const msghdr message = MessageOf(pieces);
    ssize_t count = 0;
    do {
      count = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
    return ResultOf(count, Outcome::kWantsWrite);
  }

 private:
  static msghdr MessageOf(std::span<const iovec> pieces) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    return message;
  }

  static RedisStreamResult ResultOf(ssize_t count, Outcome would_block) {
    if (count >= 0) {
      return {.outcome = Outcome::kMoved, .count_bytes = static_cast<uint64_t>(count)};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {.outcome = would_block};
    return {.outcome = Outcome::kFailed,
            .status = Status(StatusCode::kIo, "a Redis connection failed", errno)};
  }

  const int fd_;
};

}  // namespace

std::unique_ptr<RedisStream> MakePlainRedisStream(int fd) {
  return std::make_unique<PlainStream>(fd);
}

}  // namespace terrace
