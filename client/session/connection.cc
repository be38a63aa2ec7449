#include "client/session/connection.h"

#include <algorithm>
#include <new>
#include <utility>

namespace terrace::client {
namespace {

// Beyond send_buffer_bytes_max, for what cannot be refused: the ends of leases. A daemon that
// leaves more than this unread is given up.
constexpr uint64_t kUnawaitedBytesMax = 4 << 20;

}  // namespace

Connection::Connection(const ClientOptions& options)
    : options_(options), fork_generation_(ForkGeneration()) {}

void Connection::Stop() {
  is_stopping_ = true;
  connecting_.WakeAll();
  link_.WakeBackground();
}

std::shared_ptr<Attachment> Connection::attachment() const {
  LockGuard guard(state_lock_);
  return attachment_;
}

Status Connection::WaitUntilConnected(uint64_t deadline_us) {
  while (true) {
    const uint32_t entered = connecting_.Enter();
    Status status(StatusCode::kBusy, "not connected yet");
    if (is_connected()) {
      status = Status::Ok();
    } else if (is_stopping()) {
      status = Status(StatusCode::kGone, "the Client is being destroyed");
    } else {
      LockGuard guard(state_lock_);
      if (refusal_.is_final) status = refusal_.status;
    }
    const bool must_wait = status.code() == StatusCode::kBusy && MonotonicUs() < deadline_us;
    if (must_wait) connecting_.Sleep(entered, 0, deadline_us);
    connecting_.Leave();
    if (!must_wait) return status;
  }
}

Status Connection::Send(uint32_t connection, const Outgoing& message, uint64_t deadline_us) {
  return link_.Send(
      connection, message,
      {.deadline_us = deadline_us, .unsent_bytes_max = options_.send_buffer_bytes_max});
}

void Connection::SendUnawaited(uint32_t connection, protocol::Verb verb,
                               std::array<std::span<const std::byte>, 4> parts) {
  Outgoing message;
  message.verb = verb;
  message.request_id = uint64_t{unawaited_count_.fetch_add(1) + 1} << 16 | kUnawaitedSlot;
  message.parts = parts;
  const Status sent =
      link_.Send(connection, message,
                 {.unsent_bytes_max = options_.send_buffer_bytes_max + kUnawaitedBytesMax});
  if (sent.code() != StatusCode::kBusy) return;
  SetError(
      "the daemon does not read: send_buffer_bytes_max bytes are unsent and leases cannot be "
      "ended; the connection is given up. Is terraced stopped?");
  link_.Shutdown();
}

void Connection::SendUnmapped(uint32_t connection, uint32_t segment) {
  const protocol::UnmappedRequest unmapped{.segment = segment};
  SendUnawaited(connection, protocol::Verb::kUnmapped, {BytesOf(unmapped)});
}

void Connection::SetAttachment(std::shared_ptr<Attachment> attachment) {
  boot_id_ = attachment->boot_id();
  is_reader_ = attachment->is_reader();
  keys_per_request_max_ =
      std::min(attachment->geometry().keys_per_request_max, protocol::kKeysPerRequestMax);
  LockGuard guard(state_lock_);
  attachment_ = std::move(attachment);
  refusal_ = Refusal();
}

Status Connection::Attach(GuardedFd socket, uint32_t connection) {
  return link_.Attach(std::move(socket), connection, attachment_->geometry().frame_bytes_max);
}

void Connection::Refuse(const Refusal& refusal) {
  SetError(refusal.text);
  {
    LockGuard guard(state_lock_);
    refusal_ = refusal;
  }
  connecting_.WakeAll();
}

void Connection::Detach() {
  link_.Detach();
  boot_id_ = 0;
  // Unmapping takes long: the background thread does it.
  LockGuard guard(state_lock_);
  retired_ = std::move(attachment_);
}

void Connection::DropLater(std::shared_ptr<Attachment> attachment, uint32_t connection) {
  const bool is_present = connection == number() && attachment->slab_device().device == nullptr;
  if (is_present || is_stopping()) return;
  try {
    LockGuard guard(state_lock_);
    if (attachment == attachment_) return;  // it has another owner
    unused_.push_back(std::move(attachment));
  } catch (const std::bad_alloc&) {
    return;  // then here and now
  }
  link_.WakeBackground();
}

void Connection::DropUnused() {
  std::shared_ptr<Attachment> retired;
  std::vector<std::shared_ptr<Attachment>> unused;
  LockGuard guard(state_lock_);
  retired.swap(retired_);
  unused.swap(unused_);
}

void Connection::SetError(std::string_view text) noexcept {
  LockGuard guard(state_lock_);
  try {
    last_error_ = text;
  } catch (const std::bad_alloc&) {
    last_error_.clear();
  }
}

void Connection::ClearError(std::string_view text) {
  LockGuard guard(state_lock_);
  if (last_error_ == text) last_error_.clear();
}

std::string Connection::last_error() const {
  LockGuard guard(state_lock_);
  return last_error_;
}

void SetErrorOf(Connection& connection, uint64_t request_id, std::string_view sentence) noexcept {
  try {
    const auto attachment = connection.attachment();
    const uint64_t session = attachment == nullptr ? 0 : attachment->geometry().session_id;
    connection.SetError(std::string(sentence) + " (request " + std::to_string(request_id) +
                        " of session " + ToHex(0, session).substr(16) + ")");
  } catch (const std::bad_alloc&) {
    connection.SetError(sentence);
  }
}

}  // namespace terrace::client
