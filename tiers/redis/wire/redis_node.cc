#include "tiers/redis/wire/redis_node.h"

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>
#include <utility>

#include "terrace/check.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

using Failure = CircuitBreaker::Failure;

const Status kOff(StatusCode::kUnsupported, "the Redis server does not work now");

}  // namespace

RedisNode::RedisNode(Options options)
    : options_(std::move(options)),
      breaker_(options_.breaker),
      connections_(options_.connections),
      timer_(*options_.loop),
      random_(std::random_device{}()) {
  TERRACE_CHECK(options_.connections > 0, "a server without connections");
}

RedisNode::~RedisNode() { TERRACE_CHECK(is_closed_, "a Redis node goes without a Close"); }

void RedisNode::Start() { Connect(0); }

bool RedisNode::is_ready() const {
  return breaker_.is_closed() && std::ranges::any_of(connections_, [](const auto& connection) {
           return connection != nullptr && connection->is_ready();
         });
}

RedisNodeCounts RedisNode::counts() const {
  RedisNodeCounts counts = counts_;
  counts.breaker_opened = breaker_.opened_count();
  counts.connections =
      static_cast<uint64_t>(std::ranges::count_if(connections_, [](const auto& connection) {
        return connection != nullptr && connection->is_ready();
      }));
  return counts;
}

RedisConnection* RedisNode::Choose(RedisLane lane) const {
  if (!breaker_.is_closed()) return nullptr;
  RedisConnection* chosen = nullptr;
  for (size_t i = 0; i < connections_.size(); ++i) {
    RedisConnection* const connection = connections_[i].get();
    if (connection == nullptr || !connection->is_ready()) continue;
    if (lane == RedisLane::kSmall && i == 0) return connection;
    // A lane without a connection of its own takes another's.
    if (lane == RedisLane::kPayload && i == 0) {
      chosen = connection;
    } else if (chosen == nullptr || chosen == connections_[0].get() ||
               connection->waiting_bytes() < chosen->waiting_bytes()) {
      chosen = connection;
    }
  }
  return chosen;
}

void RedisNode::Send(RedisRequest request) {
  if (!denied_.is_empty() && !request.is_write &&
      denied_.IsPaused(FirstWordOf(request.command), RedisNowUs())) {
    RedisAnswer answer{.error = RedisError::kNoPermission,
                       .reply = {.kind = RedisReply::Kind::kError}};
    options_.listener->OnNodeAnswer(this, std::move(request), std::move(answer));
    return;
  }
  RedisConnection* const connection = Choose(request.lane);
  const Status status = connection == nullptr ? kOff : connection->Send(&request);
  if (!status.ok()) {
    options_.listener->OnNodeAnswer(this, std::move(request), {.status = status});
  }
}

void RedisNode::SendAsking(RedisRequest request) {
  RedisConnection* const connection = Choose(request.lane);
  RedisRequest asking{.command = FormatRedisCommand({"ASKING"}), .done = nullptr};
  Status status = connection == nullptr ? kOff : connection->Send(&asking);
  if (status.ok()) status = connection->Send(&request);
  if (!status.ok()) {
    options_.listener->OnNodeAnswer(this, std::move(request), {.status = status});
  }
}

void RedisNode::Close(Status status) {
  if (is_closed_) return;
  is_closed_ = true;
  timer_.cancel();
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i] != nullptr) connections_[i]->Close(status);
  }
}

void RedisNode::Connect(size_t index) {
  RedisConnection::Options options = options_.connection;
  options.loop = options_.loop;
  options.listener = this;
  options.attempt = static_cast<uint32_t>(counts_.attempts++);
  if (moved_slot_.has_value() && !options.permission_key.empty()) {
    options.permission_key.append("{").append(RedisTagOf(*moved_slot_)).append("}");
  }
  connections_[index] = std::make_unique<RedisConnection>(std::move(options));
  connections_[index]->Open();
}

void RedisNode::ConnectMissing() {
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i] == nullptr) Connect(i);
  }
}

void RedisNode::OnReady(RedisConnection* connection) {
  knows_expire_nx_ = connection->knows_expire_nx();
  if (counts().connections == 1) {
    ++counts_.returns;
    // Another server, perhaps: what one before it denied is not known of it.
    denied_ = {};
    if (IsWriteDenial(write_refusal_.error())) write_refusal_ = {};
  }
  user_ = connection->user();
  breaker_.OnSuccess();
  refusal_ = RedisRefusal::kNone;
  moved_slot_.reset();
  trouble_.clear();
  if (!has_worked_) {
    has_worked_ = true;
    ConnectMissing();
  }
  options_.listener->OnNodeHealth(this);
}

void RedisNode::OnClosed(RedisConnection* connection, Status status) {
  ++counts_.connections_lost;
  const auto slot = std::ranges::find_if(
      connections_, [connection](const auto& known) { return known.get() == connection; });
  TERRACE_CHECK(slot != connections_.end(), "a connection nobody made");
  // It may be on the stack.
  asio::post(*options_.loop, [gone = std::move(*slot)] {});
  if (is_closed_ || breaker_.state() == CircuitBreaker::State::kOpen) return;  // we closed it
  trouble_ = RedisTroubleText(status, connection->said());
  if (!connection->denied().empty()) trouble_ += ": its ACL " + connection->denied();
  if (status.code() == StatusCode::kIo && status.detail() != 0) {
    trouble_ += ", at " + ToText(endpoint());
  }
  const bool is_hard = status.code() == StatusCode::kUnsupported;
  if (is_hard) refusal_ = connection->refusal();
  OnFailure(is_hard ? Failure::kHard : Failure::kSoft);
  options_.listener->OnNodeHealth(this);
}

void RedisNode::OnFailure(Failure failure) {
  const bool was_closed = breaker_.is_closed();
  breaker_.OnFailure(RedisNowUs(), failure, random_());
  if (was_closed && !breaker_.is_closed()) {
    has_worked_ = false;
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (connections_[i] != nullptr) connections_[i]->Close(kOff);
    }
    options_.listener->OnNodeHealth(this);
  }
  WatchRetry();
}

void RedisNode::OnAnswer(RedisRequest request, RedisAnswer answer) {
  NoteDenials(request, &answer);
  // What the ACL forbids now and then is no trouble of the login: all else goes on.
  const bool is_denied = answer.error == RedisError::kNoPermission;
  if (IsHardRedisError(answer.error) && !is_denied) {
    refusal_ = RedisRefusal::kLogin;
    trouble_ = StatusOfRedisError(answer.error).what();
    OnFailure(Failure::kHard);
  } else if (IsRedirect(answer.error) && !options_.connection.is_of_cluster) {
    refusal_ = RedisRefusal::kKind;
    moved_slot_ = request.slot;
    trouble_ = kRedisIsOfCluster.what();
    OnFailure(Failure::kHard);
  } else if (IsSoftRedisError(answer.error)) {
    trouble_ = RedisTroubleText(StatusOfRedisError(answer.error), FirstWordsOf(answer.reply.text));
    OnFailure(Failure::kSoft);
  } else if (answer.status.ok()) {
    breaker_.OnSuccess();
  }
  NoteWrites(request, answer);
  if (request.done != nullptr) {
    options_.listener->OnNodeAnswer(this, std::move(request), std::move(answer));
  }
}

void RedisNode::NoteDenials(const RedisRequest& request, RedisAnswer* answer) {
  const bool is_script = answer->error == RedisError::kNoPermissionInScript;
  if (is_script || answer->error == RedisError::kNoPermission) {
    denied_.OnDenied(FirstWordOf(request.command), answer->reply.text, is_script, RedisNowUs());
    if (!is_script && request.is_write) answer->error = RedisError::kNoPermissionToWrite;
    options_.listener->OnNodeHealth(this);
  } else if (!denied_.is_empty() && answer->status.ok() &&
             denied_.OnLet(FirstWordOf(request.command))) {
    options_.listener->OnNodeHealth(this);
  }
}

std::string RedisNode::write_trouble() const {
  const RedisError refusal = write_refusal_.error();
  const bool is_denied = refusal == RedisError::kNone || IsWriteDenial(refusal);
  const std::string denied = is_denied ? denied_.TextOfOthers(user_) : "";
  if (!denied.empty()) return "the Redis server's ACL " + denied;
  return StatusOfRedisError(refusal).what();
}

std::string RedisNode::read_trouble() const {
  const std::string denied = denied_.TextOfReads(user_);
  return denied.empty() ? denied : "the Redis server's ACL " + denied;
}

void RedisNode::NoteWrites(const RedisRequest& request, const RedisAnswer& answer) {
  const RedisError before = write_refusal_.error();
  const uint64_t now_us = RedisNowUs();
  const bool is_rise_refused = request.is_rise && IsWriteRefusal(answer.error);
  if (IsWriteRefusal(answer.error)) {
    write_refusal_.OnRefused(answer.error, request.slot, now_us);
    if (is_rise_refused) write_refusal_.OnRiseRefused(now_us);
  } else if (answer.status.ok() && IsWriteDone(answer.reply)) {
    if (request.is_write) write_refusal_.OnTaken(now_us);
    if (request.is_rise) write_refusal_.OnRiseTaken();
  }
  if (write_refusal_.error() != before) options_.listener->OnNodeHealth(this);
}

void RedisNode::LookForWrites(const std::string& look_key, uint32_t slot) {
  if (!is_ready() || !write_refusal_.TakeLook(RedisNowUs())) return;
  const std::string key = look_key + "{" + RedisTagOf(slot) + "}";
  Send({.command = FormatRedisCommand({"SET", key, "", "PX", "1"}),
        .slot = slot,
        .is_write = true,
        .done = [](const RedisAnswer&) {}});
}

// Never at once: hosts that lost a server together come back one after another.
void RedisNode::WatchRetry() {
  if (is_retry_set_ || is_closed_) return;
  const uint64_t now_us = RedisNowUs();
  uint64_t wait_us = options_.reconnect_us / 2 + random_() % (options_.reconnect_us / 2 + 1);
  if (breaker_.state() == CircuitBreaker::State::kOpen) {
    wait_us = breaker_.probe_at_us() > now_us ? breaker_.probe_at_us() - now_us : 0;
  }
  is_retry_set_ = true;
  timer_.expires_after(std::chrono::microseconds(wait_us));
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (alive.expired()) return;
    is_retry_set_ = false;
    if (!error && !is_closed_) Retry();
  });
}

void RedisNode::Retry() {
  switch (breaker_.state()) {
    case CircuitBreaker::State::kClosed:
      // Until it has worked one connection is enough to find out.
      if (has_worked_) {
        ConnectMissing();
      } else if (connections_[0] == nullptr) {
        Connect(0);
      }
      return;
    case CircuitBreaker::State::kOpen:
      if (breaker_.TakeProbe(RedisNowUs())) {
        Connect(0);
      } else {
        WatchRetry();
      }
      return;
    case CircuitBreaker::State::kHalfOpen:
      return;  // the connection under way will tell
  }
}

}  // namespace terrace
