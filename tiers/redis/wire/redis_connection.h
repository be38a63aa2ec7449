// RedisConnection: one login to one server. Commands go out in order, many at once, payloads from
// where they lie; answers come back in order, payloads to where they belong. When anything is
// late, short or not RESP the connection is given up with everything on it: replies have no names,
// and the next one could be taken for another's.
//
// THREADING: the Redis thread; calls to the listener never come from inside Send.
// OWNERSHIP: a request is the connection's from Send to OnAnswer, exactly once each; a payload's
// memory is not touched afterwards. The listener destroys a closed connection in a later turn.
// LIMITS: queue_max requests, window_bytes of them under way.
#pragma once

#include <array>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/status.h"
#include "tiers/redis/wire/redis_command.h"
#include "tiers/redis/wire/redis_endpoint.h"
#include "tiers/redis/wire/redis_error.h"
#include "tiers/redis/wire/redis_reply.h"
#include "tiers/redis/wire/redis_stream.h"

namespace terrace {

struct RedisAnswer {
  Status status;  // not kOk: no reply came
  RedisError error = RedisError::kNone;
  RedisReply reply;
};

// Small commands do not wait behind payloads: they have connections of their own.
enum class RedisLane : uint8_t { kSmall, kPayload };

struct RedisRequest {
  RedisCommand command;
  std::span<std::byte> into;  // where a payload in the answer belongs
  // The answer is an array, as RedisPayloadPlace::Shape::kFields says.
  std::optional<std::vector<uint32_t>> fields;
  // How many replies answer it. The last one counts, or the first that is an error.
  uint32_t answers = 1;
  RedisLane lane = RedisLane::kSmall;
  uint32_t slot = 0;      // of its keys
  bool is_rise = false;   // of a generation, which also a full server takes
  bool is_write = false;  // done without an error, it says that the server takes writes
  uint32_t redirects = 0;
  std::function<void(const RedisAnswer&)> done;  // never called by the connection itself

  uint64_t cost_bytes() const { return command.length_bytes() + into.size(); }
};

class RedisConnection;

class RedisConnectionListener {
 public:
  virtual ~RedisConnectionListener() = default;
  // Logged in, and the server works.
  virtual void OnReady(RedisConnection* connection) = 0;
  // For good. Every request has been answered. kUnsupported: see refusal().
  virtual void OnClosed(RedisConnection* connection, Status status) = 0;
  virtual void OnAnswer(RedisRequest request, RedisAnswer answer) = 0;
};

class RedisConnection final : public RedisReplySink {
 public:
  struct Options {
    asio::io_context* loop = nullptr;
    RedisEndpoint endpoint;
    std::string credentials_file;  // empty: no login
    RedisTls* tls = nullptr;       // none: plain
    // Never there. Given a time to live at login, so that a user who may not is refused there.
    // Empty: not.
    std::string permission_key;
    bool is_of_cluster = false;  // false: a server that redirects is refused
    RedisTimeouts timeouts;
    uint32_t queue_max = 4096;
    uint64_t window_bytes = 4 * kMiB;
    uint32_t attempt = 0;  // which of the host's addresses is tried first
    RedisConnectionListener* listener = nullptr;
  };
  explicit RedisConnection(Options options);
  ~RedisConnection() override;

  // OnReady or OnClosed follows.
  void Open();
  // OnAnswer follows. kBusy: the queue is full, and the request was not taken.
  Status Send(RedisRequest* request);
  // OnClosed follows before it returns, unless it has come already.
  void Close(Status status);

  bool is_ready() const { return phase_ == Phase::kReady; }
  // Of one that is closed.
  RedisRefusal refusal() const { return refusal_; }
  // Likewise, what a server said that cannot answer now, for a person. Empty: nothing.
  const std::string& said() const { return said_; }
  // Likewise, what its ACL forbids a login, as DeniedCommands says it. Empty: nothing.
  const std::string& denied() const { return denied_; }
  // As whom it logged in; empty: the server's default user.
  const std::string& user() const { return user_; }
  // PEXPIRE … NX: of servers from 7 on. Known once ready.
  bool knows_expire_nx() const { return knows_expire_nx_; }
  // What an answer to a request sent now would wait for.
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  const RedisEndpoint& endpoint() const { return options_.endpoint; }

  // RedisReplySink
  bool IsReplyDue() const override;
  RedisPayloadPlace PayloadPlace() override;
  void OnReply(RedisReply reply) override;

 private:
  enum class Phase : uint8_t { kResolving, kConnecting, kHandshake, kLogin, kReady, kClosed };
  struct Flying {
    RedisRequest request;
    uint64_t deadline_us = 0;
    uint64_t sent_bytes = 0;
    uint32_t answers = 0;  // that have come
    RedisReply first_error;
  };

  void CloseWith(Status status, const RedisAnswer& first);
  // Of a stream that goes no further.
  void CloseFailed(const RedisStreamResult& result, int error_of_end);
  void Resolve();
  void Connect(const asio::generic::stream_protocol::endpoint& address);
  void OnConnected();
  void Shake();
  void LogIn();
  void SendLogin(std::initializer_list<std::string_view> words);
  void OnLoginAnswer(const RedisCommand& command, const RedisReply& reply);
  void Refuse(RedisRefusal refusal, Status status);
  void Enqueue(RedisRequest request);

  void Pump();
  void FlushSoon();
  bool WriteSome();
  bool ReadSome();
  size_t GatherPieces();
  void CountSent(uint64_t count_bytes);
  void Admit();
  void WaitReadable();
  void WaitWritable();
  void WatchDeadline();
  void OnDeadlineTimer();

  const Options options_;
  // Handlers hold it weakly: what the loop still runs for a connection that is gone does nothing.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  asio::generic::stream_protocol::socket socket_;
  asio::ip::tcp::resolver resolver_;
  asio::steady_timer timer_;
  std::unique_ptr<RedisStream> stream_;
  RedisReplyReader reader_;
  Phase phase_ = Phase::kResolving;
  uint64_t opened_at_us_ = 0;
  std::deque<RedisRequest> queued_;  // not under way yet
  std::deque<Flying> flying_;        // being sent, or waiting for an answer, in order
  size_t unsent_index_ = 0;          // the first of flying_ that is not sent to its end
  uint64_t flying_bytes_ = 0;
  uint64_t waiting_bytes_ = 0;
  uint32_t login_answers_due_ = 0;
  bool knows_expire_nx_ = true;
  RedisRefusal refusal_ = RedisRefusal::kNone;
  std::string said_, denied_, user_;
  bool is_flush_posted_ = false;
  bool is_waiting_readable_ = false, is_waiting_writable_ = false, is_watching_ = false;
  uint64_t watched_us_ = 0;  // what the timer is set for
  std::array<iovec, 64> pieces_{};
};

// Monotonic.
uint64_t RedisNowUs();

}  // namespace terrace
