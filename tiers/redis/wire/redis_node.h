// RedisNode: one server with a few connections to it, and the judgement whether it works. Small
// commands have the first connection to themselves; payloads take the least busy of the others.
//
// A server that does not work is not asked (CircuitBreaker): requests are answered at once, and one
// connection tries from time to time. When it has logged in the others follow.
//
// THREADING: the Redis thread. OWNERSHIP: every request taken is answered exactly once through the
// listener, also when the node goes. Close, then run the loop until it is idle, before destroying.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tiers/disk/circuit_breaker.h"
#include "tiers/redis/wire/denied_commands.h"
#include "tiers/redis/wire/redis_connection.h"
#include "tiers/redis/wire/write_refusal.h"

namespace terrace {

class RedisNode;

class RedisNodeListener {
 public:
  virtual ~RedisNodeListener() = default;
  virtual void OnNodeAnswer(RedisNode* node, RedisRequest request, RedisAnswer answer) = 0;
  // A connection came or went: it may work now, or have stopped to.
  virtual void OnNodeHealth(RedisNode* node) = 0;
};

struct RedisNodeCounts {
  uint64_t connections = 0;  // logged in
  uint64_t attempts = 0;     // to connect
  uint64_t connections_lost = 0;
  uint64_t breaker_opened = 0;
  uint64_t returns = 0;  // how often it worked that had not
};

class RedisNode final : public RedisConnectionListener {
 public:
  struct Options {
    asio::io_context* loop = nullptr;
    RedisConnection::Options connection;  // loop and listener are filled in
    uint32_t connections = 5;             // ≥ 1; the first for small commands
    CircuitBreaker::Options breaker;
    uint64_t reconnect_us = 100 * kUsPerMs;  // at least half, while the breaker is closed
    RedisNodeListener* listener = nullptr;
  };
  explicit RedisNode(Options options);
  ~RedisNode() override;

  void Start();
  // OnNodeAnswer follows, from a later turn or, when nothing could be sent, from inside.
  void Send(RedisRequest request);
  // Two commands of which the second must come right behind the first, whose answer is ignored.
  void SendAsking(RedisRequest request);
  // Answers what is under way with `status`; nothing is tried any more.
  void Close(Status status);

  // A command can be sent now.
  bool is_ready() const;
  // Why it is not, for a person. Empty: nothing is known.
  const std::string& trouble() const { return trouble_; }
  RedisRefusal refusal() const { return refusal_; }
  const WriteRefusal& write_refusal() const { return write_refusal_; }
  // False: it has just refused a rise. True once in a while then: one is to be tried.
  bool TakesRise() { return write_refusal_.TakeRise(RedisNowUs()); }
  // For a person: why it takes no writes, or not all that belongs to them; which reads its ACL
  // forbids. Empty: neither.
  std::string write_trouble() const;
  std::string read_trouble() const;
  bool has_denials() const { return !denied_.is_empty(); }
  // Asks whether writes are taken again, if it is time, with one of that slot; `look_key` with a
  // hash tag behind it is of nothing.
  void LookForWrites(const std::string& look_key, uint32_t slot);
  // As its last login said.
  bool knows_expire_nx() const { return knows_expire_nx_; }
  const RedisEndpoint& endpoint() const { return options_.connection.endpoint; }
  RedisNodeCounts counts() const;

  // RedisConnectionListener
  void OnReady(RedisConnection* connection) override;
  void OnClosed(RedisConnection* connection, Status status) override;
  void OnAnswer(RedisRequest request, RedisAnswer answer) override;

 private:
  RedisConnection* Choose(RedisLane lane) const;
  void Connect(size_t index);
  void ConnectMissing();
  void OnFailure(CircuitBreaker::Failure failure);
  void NoteWrites(const RedisRequest& request, const RedisAnswer& answer);
  // What its ACL forbids and lets.
  void NoteDenials(const RedisRequest& request, RedisAnswer* answer);
  void WatchRetry();
  void Retry();

  const Options options_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  CircuitBreaker breaker_;
  std::vector<std::unique_ptr<RedisConnection>> connections_;  // by index; none: not tried now
  asio::steady_timer timer_;
  std::mt19937_64 random_;
  RedisNodeCounts counts_;
  std::string trouble_;
  WriteRefusal write_refusal_;
  DeniedCommands denied_;
  std::string user_;  // of the last login
  bool is_closed_ = false;
  bool has_worked_ = false;  // since the breaker opened last
  RedisRefusal refusal_ = RedisRefusal::kNone;
  // A key of it was said to live elsewhere, by a server that is to keep all of them: a login asks
  // about this slot until it may.
  std::optional<uint32_t> moved_slot_;
  bool knows_expire_nx_ = true;
  bool is_retry_set_ = false;
};

}  // namespace terrace
