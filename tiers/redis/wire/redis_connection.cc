#include "tiers/redis/wire/redis_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <asio/ip/address.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <utility>

#include "terrace/check.h"
#include "tiers/redis/wire/denied_commands.h"

namespace terrace {
namespace {

using Outcome = RedisStreamResult::Outcome;
using Address = asio::generic::stream_protocol::endpoint;

// Of one connection in one turn, so that the others get theirs.
constexpr uint64_t kTurnBytes = 4 * kMiB;

const Status kLate(StatusCode::kBusy, "a Redis server did not answer in time");

// Of an AUTH as it is sent; empty: it is another command.
std::string_view PasswordIn(std::string_view head) {
  constexpr std::string_view kEnd = "\r\n";
  if (head.find("\r\nAUTH\r\n") == std::string_view::npos) return {};
  head.remove_suffix(kEnd.size());
  return head.substr(head.rfind(kEnd) + kEnd.size());
}

}  // namespace

uint64_t RedisNowUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

RedisConnection::RedisConnection(Options options)
    : options_(std::move(options)),
      socket_(*options_.loop),
      resolver_(*options_.loop),
      timer_(*options_.loop),
      reader_(this) {}

RedisConnection::~RedisConnection() {
  TERRACE_CHECK(flying_.empty() && queued_.empty(), "a connection goes with requests on it");
}

void RedisConnection::Open() {
  opened_at_us_ = RedisNowUs();
  WatchDeadline();
  if (!options_.endpoint.unix_path.empty()) {
    Connect(asio::local::stream_protocol::endpoint(options_.endpoint.unix_path));
    return;
  }
  asio::error_code error;
  const asio::ip::address address = asio::ip::make_address(options_.endpoint.host, error);
  if (!error) {
    Connect(asio::ip::tcp::endpoint(address, options_.endpoint.port));
    return;
  }
  Resolve();
}

void RedisConnection::Resolve() {
  resolver_.async_resolve(
      options_.endpoint.host, std::to_string(options_.endpoint.port),
      [this, alive = std::weak_ptr(alive_)](const asio::error_code& error,
                                            const asio::ip::tcp::resolver::results_type& found) {
        if (alive.expired() || phase_ != Phase::kResolving) return;
        if (error || found.empty()) {
          constexpr int kNoErrno = -1;
          Close(Status(StatusCode::kIo, "the name of a Redis server does not resolve", kNoErrno));
          return;
        }
        auto chosen = found.begin();
        std::advance(chosen, options_.attempt % found.size());
        Connect(chosen->endpoint());
      });
}

void RedisConnection::Connect(const Address& address) {
  phase_ = Phase::kConnecting;
  asio::error_code error;
  socket_.open(address.protocol(), error);
  if (!error) socket_.non_blocking(true, error);
  if (error) {
    // From a turn of its own, as every other end.
    asio::post(*options_.loop, [this, alive = std::weak_ptr(alive_), number = error.value()] {
      if (alive.expired()) return;
      Close(Status(StatusCode::kIo, "a socket for Redis cannot be made", number));
    });
    return;
  }
  socket_.async_connect(
      address, [this, alive = std::weak_ptr(alive_)](const asio::error_code& connect_error) {
        if (alive.expired() || phase_ != Phase::kConnecting) return;
        if (connect_error) {
          Close(Status(StatusCode::kIo, "a Redis server cannot be reached", connect_error.value()));
          return;
        }
        OnConnected();
      });
}

void RedisConnection::OnConnected() {
  if (options_.endpoint.unix_path.empty()) {
    asio::error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  }
  const int fd = socket_.native_handle();
  stream_ = options_.tls == nullptr ? MakePlainRedisStream(fd)
                                    : options_.tls->MakeStream(fd, options_.endpoint.host);
  phase_ = Phase::kHandshake;
  Shake();
}

void RedisConnection::Shake() {
  const RedisStreamResult result = stream_->Handshake();
  switch (result.outcome) {
    case Outcome::kMoved:
      LogIn();
      return;
    case Outcome::kWantsRead:
      WaitReadable();
      return;
    case Outcome::kWantsWrite:
      WaitWritable();
      return;
    case Outcome::kEnded:
    case Outcome::kFailed:
      CloseFailed(result, ECONNRESET);
      return;
  }
}

// PING: a server that is loading, or wants a login, says so now and not to the first block. One
// that cannot save to its disk answers it as it does writes, and serves reads.
void RedisConnection::LogIn() {
  phase_ = Phase::kLogin;
  if (!options_.credentials_file.empty()) {
    RedisCredentials credentials;
    std::string why;
    const Status status = ReadRedisCredentials(options_.credentials_file, &credentials, &why);
    if (!status.ok()) {
      Refuse(RedisRefusal::kLogin,
             Status(StatusCode::kUnsupported, "the file with the Redis password cannot be used"));
      return;
    }
    user_ = credentials.user;
    if (credentials.user.empty()) {
      SendLogin({"AUTH", credentials.password});
    } else {
      SendLogin({"AUTH", credentials.user, credentials.password});
    }
  }
  SendLogin({"PING"});
  if (!options_.permission_key.empty()) {
    SendLogin({"PEXPIRE", options_.permission_key, "1", "NX"});
  }
  Pump();
}

void RedisConnection::SendLogin(std::initializer_list<std::string_view> words) {
  ++login_answers_due_;
  Enqueue({.command = FormatRedisCommand(words)});
}

void RedisConnection::OnLoginAnswer(const RedisCommand& command, const RedisReply& reply) {
  --login_answers_due_;
  if (reply.kind == RedisReply::Kind::kError) {
    const RedisError error = ClassifyRedisError(reply.text);
    if (error == RedisError::kNoPermission) {
      DeniedCommands denied;
      denied.OnDenied(FirstWordOf(command), reply.text, false, RedisNowUs());
      denied_ = denied.TextOfOthers(user_);
    }
    if (IsHardRedisError(error)) return Refuse(RedisRefusal::kLogin, StatusOfRedisError(error));
    // In a Cluster the key may well be another server's: of it only little matters.
    const bool is_of_key = login_answers_due_ == 0 && !options_.permission_key.empty();
    const bool is_served = is_of_key || IsWriteRefusal(error);
    if (!is_served || (IsSoftRedisError(error) && !options_.is_of_cluster)) {
      said_ = FirstWordsOf(reply.text);
      const std::string_view password = PasswordIn(command.head);
      if (!password.empty() && said_.find(password) != std::string::npos) said_.clear();
      return Close(StatusOfRedisError(error));
    }
    if (IsRedirect(error) && !options_.is_of_cluster) {
      return Refuse(RedisRefusal::kKind, kRedisIsOfCluster);
    }
    if (error == RedisError::kUnknownCommand) {
      return Refuse(RedisRefusal::kKind, kRedisKeepsNoKeys);
    }
    knows_expire_nx_ = error != RedisError::kWrongArguments;
  }
  if (login_answers_due_ > 0) return;
  phase_ = Phase::kReady;
  options_.listener->OnReady(this);
}

Status RedisConnection::Send(RedisRequest* request) {
  if (phase_ != Phase::kReady) {
    return Status(StatusCode::kBusy, "a Redis connection is not ready");
  }
  if (queued_.size() + flying_.size() >= options_.queue_max) {
    return Status(StatusCode::kBusy, "the queue of a Redis connection is full");
  }
  Enqueue(std::move(*request));
  FlushSoon();
  return Status::Ok();
}

void RedisConnection::Enqueue(RedisRequest request) {
  waiting_bytes_ += request.cost_bytes();
  queued_.push_back(std::move(request));
  Admit();
}

// What waits behind the window has no deadline yet: it will count from when it is under way.
void RedisConnection::Admit() {
  while (!queued_.empty() && (flying_.empty() || flying_bytes_ + queued_.front().cost_bytes() <=
                                                     options_.window_bytes)) {
    flying_bytes_ += queued_.front().cost_bytes();
    flying_.push_back({.request = std::move(queued_.front()),
                       .deadline_us = RedisNowUs() + options_.timeouts.CommandUs(flying_bytes_)});
    queued_.pop_front();
  }
  WatchDeadline();
}

void RedisConnection::Close(Status status) { CloseWith(status, {.status = status}); }

void RedisConnection::Refuse(RedisRefusal refusal, Status status) {
  refusal_ = refusal;
  Close(status);
}

void RedisConnection::CloseFailed(const RedisStreamResult& result, int error_of_end) {
  if (result.status.code() == StatusCode::kUnsupported) refusal_ = RedisRefusal::kCertificate;
  Close(result.status.ok() ? Status(StatusCode::kIo, "a Redis server hung up", error_of_end)
                           : result.status);
}

// `first` answers what an answer is due to.
void RedisConnection::CloseWith(Status status, const RedisAnswer& first) {
  if (phase_ == Phase::kClosed) return;
  const bool was_login = phase_ != Phase::kReady;
  phase_ = Phase::kClosed;
  asio::error_code ignored;
  resolver_.cancel();
  timer_.cancel();
  stream_.reset();
  // What was not sent by now is not sent any more: it would come late.
  if (options_.endpoint.unix_path.empty() && !flying_.empty()) {
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  }
  socket_.close(ignored);
  std::deque<Flying> flying = std::move(flying_);
  std::deque<RedisRequest> queued = std::move(queued_);
  flying_.clear();
  queued_.clear();
  waiting_bytes_ = 0;
  if (was_login) {
    for (Flying& login : flying) WipeText(&login.request.command.head);
  } else {
    bool is_first = true;
    for (Flying& one : flying) {
      options_.listener->OnAnswer(std::move(one.request),
                                  is_first ? first : RedisAnswer{.status = status});
      is_first = false;
    }
    for (RedisRequest& one : queued) {
      options_.listener->OnAnswer(std::move(one), {.status = status});
    }
  }
  options_.listener->OnClosed(this, status);
}

bool RedisConnection::IsReplyDue() const {
  if (phase_ == Phase::kClosed || flying_.empty()) return false;
  // A transaction is answered from its beginning on, but not to its end.
  const Flying& first = flying_.front();
  return unsent_index_ > 0 || (first.sent_bytes > 0 && first.answers + 1 < first.request.answers);
}

RedisPayloadPlace RedisConnection::PayloadPlace() {
  using Shape = RedisPayloadPlace::Shape;
  const RedisRequest& request = flying_.front().request;
  if (request.fields.has_value()) {
    return {.shape = Shape::kFields, .into = request.into, .field_bytes = *request.fields};
  }
  return {.shape = request.into.empty() ? Shape::kNone : Shape::kValue, .into = request.into};
}

void RedisConnection::OnReply(RedisReply reply) {
  Flying& first = flying_.front();
  if (first.request.answers > 1 && reply.kind == RedisReply::Kind::kError &&
      first.first_error.kind != RedisReply::Kind::kError) {
    first.first_error = reply;
  }
  if (++first.answers < first.request.answers) return;
  TERRACE_CHECK(unsent_index_ > 0,
                "IsReplyDue: no request is answered to its end before it is sent");
  if (first.first_error.kind == RedisReply::Kind::kError) reply = std::move(first.first_error);
  RedisRequest request = std::move(first.request);
  flying_.pop_front();
  --unsent_index_;
  TERRACE_CHECK(flying_bytes_ >= request.cost_bytes() && waiting_bytes_ >= flying_bytes_,
                "what is under way waits, too: the window opens by as much as it was closed");
  flying_bytes_ -= request.cost_bytes();
  waiting_bytes_ -= request.cost_bytes();
  if (phase_ == Phase::kLogin) {
    OnLoginAnswer(request.command, reply);
    WipeText(&request.command.head);
    return;
  }
  Admit();
  RedisAnswer answer{.reply = std::move(reply)};
  if (answer.reply.kind == RedisReply::Kind::kError) {
    answer.error = ClassifyRedisError(answer.reply.text);
  }
  options_.listener->OnAnswer(std::move(request), std::move(answer));
}

void RedisConnection::FlushSoon() {
  if (is_flush_posted_) return;
  is_flush_posted_ = true;
  asio::post(*options_.loop, [this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    is_flush_posted_ = false;
    Pump();
  });
}

// Moves bytes both ways until neither goes on.
void RedisConnection::Pump() {
  if (phase_ == Phase::kHandshake) {
    Shake();
    return;
  }
  if (phase_ != Phase::kLogin && phase_ != Phase::kReady) return;
  if (!WriteSome()) return;
  if (!is_waiting_readable_ && !ReadSome()) return;
  if (unsent_index_ < flying_.size() && !is_waiting_writable_) FlushSoon();
}

// False: the connection is closed.
bool RedisConnection::WriteSome() {
  while (!is_waiting_writable_) {
    const size_t count = GatherPieces();
    if (count == 0) return true;
    const RedisStreamResult result = stream_->Write(std::span(pieces_).first(count));
    switch (result.outcome) {
      case Outcome::kMoved:
        CountSent(result.count_bytes);
        break;
      case Outcome::kWantsWrite:
        WaitWritable();
        break;
      case Outcome::kWantsRead:  // a renegotiation, which is refused
      case Outcome::kEnded:
      case Outcome::kFailed:
        CloseFailed(result, EPIPE);
        return false;
    }
  }
  return true;
}

size_t RedisConnection::GatherPieces() {
  size_t count = 0;
  for (size_t i = unsent_index_; i < flying_.size() && count + 3 <= pieces_.size(); ++i) {
    const RedisCommand& command = flying_[i].request.command;
    uint64_t skip_bytes = flying_[i].sent_bytes;
    const auto add = [&](const void* bytes, uint64_t length_bytes) {
      const uint64_t skipped = std::min(skip_bytes, length_bytes);
      skip_bytes -= skipped;
      if (skipped == length_bytes) return;
      pieces_[count++] = {const_cast<char*>(static_cast<const char*>(bytes)) + skipped,
                          length_bytes - skipped};
    };
    add(command.head.data(), command.head.size());
    add(command.payload.data(), command.payload.size());
    add(command.tail.data(), command.tail.size());
  }
  return count;
}

void RedisConnection::CountSent(uint64_t count_bytes) {
  while (count_bytes > 0) {
    TERRACE_CHECK(unsent_index_ < flying_.size(), "no more is sent than was gathered");
    Flying& flying = flying_[unsent_index_];
    const uint64_t length_bytes = flying.request.command.length_bytes();
    const uint64_t taken_bytes = std::min(count_bytes, length_bytes - flying.sent_bytes);
    flying.sent_bytes += taken_bytes;
    count_bytes -= taken_bytes;
    if (flying.sent_bytes == length_bytes) ++unsent_index_;
  }
}

// False: the connection is closed.
bool RedisConnection::ReadSome() {
  uint64_t turn_bytes = 0;
  while (turn_bytes < kTurnBytes) {
    const std::span<const iovec> places = reader_.Gather();
    uint64_t room_bytes = 0;
    for (const iovec& place : places) room_bytes += place.iov_len;
    const RedisStreamResult result = stream_->Read(places);
    bool has_more = true;
    switch (result.outcome) {
      case Outcome::kMoved:
        has_more = !stream_->IsDrainedByShortReads() || result.count_bytes == room_bytes;
        break;
      case Outcome::kWantsRead:
        WaitReadable();
        return true;
      case Outcome::kWantsWrite:
        WaitWritable();
        return true;
      case Outcome::kEnded:
      case Outcome::kFailed:
        CloseFailed(result, ECONNRESET);
        return false;
    }
    turn_bytes += result.count_bytes;
    const Status status = reader_.Received(result.count_bytes);
    if (phase_ == Phase::kClosed) return false;
    if (!status.ok()) {
      RedisAnswer first{.status = status};
      if (status.code() == StatusCode::kNoSpace) {  // whoever asked can take the value away
        first = {.error = RedisError::kTooLong, .reply = {.kind = RedisReply::Kind::kError}};
      }
      CloseWith(Status(StatusCode::kIo, status.what()), first);
      return false;
    }
    if (!has_more) {
      WaitReadable();
      return true;
    }
  }
  // There is more, here or inside TLS: no readiness will be told.
  FlushSoon();
  return true;
}

void RedisConnection::WaitReadable() {
  if (is_waiting_readable_) return;
  is_waiting_readable_ = true;
  socket_.async_wait(asio::socket_base::wait_read,
                     [this, alive = std::weak_ptr(alive_)](const asio::error_code&) {
                       if (alive.expired()) return;
                       is_waiting_readable_ = false;
                       Pump();
                     });
}

void RedisConnection::WaitWritable() {
  if (is_waiting_writable_) return;
  is_waiting_writable_ = true;
  socket_.async_wait(asio::socket_base::wait_write,
                     [this, alive = std::weak_ptr(alive_)](const asio::error_code&) {
                       if (alive.expired()) return;
                       is_waiting_writable_ = false;
                       Pump();
                     });
}

// One timer, set for what is due first and moved on when it runs out.
void RedisConnection::WatchDeadline() {
  if (phase_ == Phase::kClosed) return;
  uint64_t deadline_us = opened_at_us_ + options_.timeouts.connect_us;
  if (phase_ == Phase::kReady) {
    if (flying_.empty()) return;
    deadline_us = flying_.front().deadline_us;
  }
  if (is_watching_ && watched_us_ <= deadline_us) return;
  is_watching_ = true;
  watched_us_ = deadline_us;
  const uint64_t now_us = RedisNowUs();
  timer_.expires_after(std::chrono::microseconds(deadline_us > now_us ? deadline_us - now_us : 0));
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (alive.expired() || error) return;
    is_watching_ = false;
    OnDeadlineTimer();
  });
}

void RedisConnection::OnDeadlineTimer() {
  const auto is_late = [this] {
    const uint64_t now_us = RedisNowUs();
    if (phase_ != Phase::kReady) return opened_at_us_ + options_.timeouts.connect_us <= now_us;
    return !flying_.empty() && flying_.front().deadline_us <= now_us;
  };
  // Perhaps it was this thread that did not come to read.
  if (is_late() && stream_ != nullptr && phase_ != Phase::kHandshake && !ReadSome()) return;
  if (is_late()) {
    Close(kLate);
    return;
  }
  WatchDeadline();
}

}  // namespace terrace
