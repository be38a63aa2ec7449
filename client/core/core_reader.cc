// What the reader of a connection does with what it reads. REQUIRES of all: the reader role.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <new>

#include "client/core/commit.h"
#include "client/core/core.h"

namespace terrace::client {
namespace {

std::string_view VerbName(protocol::Verb verb) {
  static constexpr std::string_view kNames[] = {
      "",        "Hello",  "Open",  "Match",   "Acquire", "Prefetch", "Join",
      "Release", "Cancel", "Touch", "Reserve", "Commit",  "Abort",    "Query",
      "Wait",    "Evict",  "Pin",   "Reset",   "Stats",   "List",     "Unmapped"};
  const auto index = static_cast<size_t>(verb);
  return index < std::size(kNames) ? kNames[index] : "an unasked message";
}

std::string_view TextOf(std::span<const std::byte> body) {
  const size_t bytes = std::min<size_t>(body.size(), protocol::kErrorTextBytesMax);
  return {reinterpret_cast<const char*>(body.data()), bytes};
}

bool GivesLease(protocol::Verb verb) {
  return verb == protocol::Verb::kAcquire || verb == protocol::Verb::kReserve ||
         verb == protocol::Verb::kJoin;
}

}  // namespace

void Core::ReadWhile(const Waiting& waiting, uint64_t deadline_us) {
  link_.ListenInCaller();
  const uint64_t spin_until_us =
      options_.reply_spin_us == 0 ? 0 : MonotonicUs() + options_.reply_spin_us;
  while (!is_broken_ && !waiting.is_over()) {
    const uint64_t now_us = spin_until_us == 0 ? 0 : MonotonicUs();
    if (now_us >= spin_until_us && !link_.WaitReadable(deadline_us)) {
      if (MonotonicUs() >= deadline_us) return;
      continue;
    }
    if (now_us >= deadline_us) return;
    ReadOnce();
  }
}

bool Core::ReadOnce() {
  if (is_broken_) return false;
  try {
    const std::span<std::byte> space = frames_.WritableSpace();
    const ssize_t received = link_.Receive(space);
    if (received > 0) {
      frames_.Advance(static_cast<size_t>(received));
      Dispatch();
      return !is_broken_;
    }
    if (received < 0 && errno == EAGAIN) return false;
    if (received < 0 && errno == EINTR) return true;
    Break(received == 0 ? "the daemon closed the connection; it is connected to again"
                        : "the connection to the daemon broke; it is connected to again");
  } catch (const std::bad_alloc&) {
    Break("no memory for what the daemon sent; the connection is given up and made again");
  }
  return false;
}

void Core::LeaveReader() {
  reader_.Unlock();
  sleepers_.WakeOne();
  if (requests_.async_count() > 0 || coming_count_.load() > 0) link_.ListenInBackground();
}

void Core::Dispatch() {
  Message message;
  std::string why;
  while (!is_broken_) {
    switch (frames_.Take(&message, &why)) {
      case FrameReader::Next::kMessage:
        OnMessage(message);
        break;
      case FrameReader::Next::kNeedsBytes:
        return;
      case FrameReader::Next::kGarbled:
        return Break(why);
    }
  }
}

void Core::OnMessage(const Message& message) {
  if (message.prefix.boot_id != boot_id_.load()) {
    return Break("another daemon answers on this connection; it is connected to again");
  }
  if (message.verb == protocol::kVerbWorkOrder) return OnWorkOrder(message);
  if (message.verb == protocol::kVerbPinTurnBegins) {
    ListenForTurn(false);
    if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->OnTurn();
    return;
  }
  switch (message.verb) {
    case protocol::Verb::kCompletion:
      return OnCompletion(message);
    case protocol::Verb::kLeaseRevoked:
      return OnLeaseRevoked(message);
    case protocol::Verb::kSegmentRevoke:
      return OnSegmentRevoke(message);
    default:
      return OnAnswer(message);
  }
}

void Core::OnAnswer(const Message& message) {
  if ((message.request_id & kUnawaitedSlot) == kUnawaitedSlot) {
    // It does not know the verb, and closes the connection next.
    const bool is_turnless =
        (message.verb == protocol::kVerbPinTurn || message.verb == protocol::kVerbDeviceReport) &&
        message.status().code() == StatusCode::kInvalid;
    if (is_turnless) turnless_boot_id_ = message.prefix.boot_id;
    return;
  }
  const auto [claim, request, verb] = requests_.ClaimAnswered(message.request_id);
  if (claim == RequestTable::Claim::kUnknown) {
    return BreakOnAnswer(message, "no such request is pending");
  }
  const bool is_right_verb = message.verb == verb;
  if (claim == RequestTable::Claim::kLate) {
    if (is_right_verb) GiveBackLease(message);
  } else if (!is_right_verb) {
    FailRequest(*request);
  } else {
    if (claim == RequestTable::Claim::kAbandoned && GivesLease(verb)) {
      GiveBackLease(message);
    } else {
      TakeAnswer(message, *request);
    }
    EndRequest(*request);
  }
  if (!is_right_verb) BreakOnAnswer(message, "the request had another verb");
}

void Core::FailRequest(Request& request) {
  request.status = Status(StatusCode::kGone, "the connection to the daemon broke");
  if (request.asked.verb == protocol::Verb::kCommit) ReturnWritten(request);
  EndRequest(request);
}

void Core::TakeAnswer(const Message& message, Request& request) {
  request.status = message.status();
  if (!request.status.ok() && !message.body.empty()) SetError(TextOf(message.body));
  if (request.asked.verb == protocol::Verb::kCommit) return TakeCommit(message, request);
  if (!request.status.ok()) return;
  if (GivesLease(request.asked.verb)) return TakeLease(message, request);
  if (const char* wrong = CheckAnswer(message.body, request.asked)) {
    request.status = Status(StatusCode::kGone, "the daemon's answer cannot be right");
    return BreakOnAnswer(message, wrong);
  }
  if (request.asked.verb == protocol::Verb::kPrefetch) {
    protocol::MatchReply reply;
    if (BodyReader(message.body).Read(&reply)) request.block_count = reply.block_count;
  }
  try {
    request.body.assign(message.body.begin(), message.body.end());
  } catch (const std::bad_alloc&) {
    request.status = Status(StatusCode::kNoSpace, "no memory for the answer");
  }
}

const char* Core::DecodeLease(const Message& message, const Asked& asked, LeaseState* lease) {
  if (lease->kind == LeaseState::Kind::kRead) {
    AcquireAnswer answer{.reply = {}, .spans = &lease->spans, .slots = &lease->slots};
    const char* wrong = DecodeAcquire(message.body, asked, &answer);
    lease->token = answer.reply.token;
    lease->member_mask = answer.reply.member_mask;
    lease->block_count = answer.reply.block_count;
    lease->token_count = answer.reply.token_count;
    lease->has_more = HasMore(answer.reply.flags, asked);
    return wrong;
  }
  ReserveAnswer answer{.reply = {}, .keys = &lease->reserved, .slots = &lease->slot_refs};
  const char* wrong = DecodeReserve(message.body, asked, &answer);
  lease->token = answer.reply.token;
  lease->member_mask = answer.reply.member_mask;
  lease->block_count = static_cast<uint32_t>(lease->reserved.size());
  lease->has_more = HasMore(answer.reply.reserved, asked);
  return wrong;
}

// A Join answers with the kind of lease its token names, which may not be the one the user meant.
bool Core::IsOtherKind(const Message& message, const Request& request) {
  if (request.asked.verb != protocol::Verb::kJoin) return false;
  LeaseState other;
  other.kind = request.lease->kind == LeaseState::Kind::kRead ? LeaseState::Kind::kWrite
                                                              : LeaseState::Kind::kRead;
  return DecodeLease(message, request.asked, &other) == nullptr;
}

void Core::TakeLease(const Message& message, Request& request) {
  LeaseState& lease = *request.lease;
  lease.connection = request.connection;
  lease.request_id = request.id;
  lease.attachment = attachment_;
  const char* wrong = nullptr;
  Status status;
  try {
    wrong = DecodeLease(message, request.asked, &lease);
    if (wrong != nullptr && IsOtherKind(message, request)) {
      wrong = nullptr;
      status = Status(StatusCode::kInvalid, "the token names a lease of the other kind");
    } else if (wrong == nullptr && lease.has_more) {
      return;  // Join asks for the next page
    } else if (wrong == nullptr) {
      status = lease.kind == LeaseState::Kind::kRead ? lease.PrepareRead() : lease.PrepareWrite();
      if (status.code() == StatusCode::kInvalid) wrong = status.what();
    }
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kNoSpace, "no memory for the lease");
  }
  if (wrong != nullptr) {
    lease.token = {};
    request.status = Status(StatusCode::kGone, "the daemon's answer cannot be right");
    return BreakOnAnswer(message, wrong);
  }
  if (!status.ok()) {
    lease.token = {};
    request.status = status;
    return GiveBackLease(message);
  }
  if (!lease.token.is_zero()) registry_.Add(lease);
  lease.is_valid = true;
}

void Core::TakeCommit(const Message& message, Request& request) {
  if (!request.status.ok()) return ReturnWritten(request);
  protocol::CommitReply reply;
  std::span<const std::byte> entry_statuses;
  if (const char* wrong = DecodeCommit(message.body, request.asked, &reply, &entry_statuses)) {
    request.status = Status(StatusCode::kGone, "the daemon's answer cannot be right");
    return BreakOnAnswer(message, wrong);
  }
  const StatusCode refusal = AccountCommit(request, reply, entry_statuses);
  if (refusal != StatusCode::kOk) {
    request.status = Status(refusal, "the daemon refused a part; no block became visible");
  }
  if ((request.commit.flags & protocol::kCommitRelease) != 0) {
    // The daemon has released it in the same step.
    LeaseState& lease = *request.lease;
    lease.is_valid = false;
    if (!lease.is_end_sent.exchange(true)) registry_.Remove(lease);
  }
}

// An answer that came too late, or whose slots cannot be used, leaves nothing behind in the daemon.
void Core::GiveBackLease(const Message& message) {
  LeaseToken token;
  if (!message.status().ok() || !GivesLease(message.verb)) return;
  static_assert(offsetof(protocol::AcquireReply, token) == 0);
  static_assert(offsetof(protocol::ReserveReply, token) == 0);
  if (!BodyReader(message.body).Read(&token) || token.is_zero()) return;
  if (!registry_.Inherit(token)) SendRelease(connection(), token, 0, 1);
}

void Core::OnCompletion(const Message& message) {
  protocol::Completion completion;
  if (!BodyReader(message.body).Read(&completion)) {
    return BreakOnAnswer(message, "it is shorter than a Completion");
  }
  registry_.ForToken(completion.token, [&](LeaseState& lease) {
    if (lease.request_id != message.request_id || !lease.is_coming.load()) return;
    if (!message.status().ok()) {
      lease.BlocksLeft(completion.first_block);
    } else if ((completion.flags & protocol::kCompletionAbsent) != 0 || completion.part_count > 0) {
      lease.PartsReadable(completion);
    } else {
      lease.BlocksReady(completion.first_block, completion.block_count);
    }
    if ((completion.flags & protocol::kCompletionLast) != 0) lease.SettleProgress();
  });
  sleepers_.WakeLane(kLeaseLane);
}

void Core::OnLeaseRevoked(const Message& message) {
  protocol::LeaseRevoked revoked;
  if (!BodyReader(message.body).Read(&revoked)) {
    return BreakOnAnswer(message, "it is shorter than a LeaseRevoked");
  }
  const uint32_t ends_owed = registry_.Revoke(revoked.token);
  SendRelease(connection(), revoked.token, 0, ends_owed);
  sleepers_.WakeLane(kLeaseLane);
}

void Core::OnSegmentRevoke(const Message& message) {
  protocol::SegmentRevoke revoke;
  if (!BodyReader(message.body).Read(&revoke) ||
      revoke.segment >= attachment_->geometry().segments_max) {
    return BreakOnAnswer(message, "it names no segment");
  }
  if (!attachment_->RevokeSegment(revoke.segment)) return;
  const protocol::UnmappedRequest unmapped{.segment = revoke.segment};
  SendUnawaited(connection(), protocol::Verb::kUnmapped, {BytesOf(unmapped)});
}

void Core::OnWorkOrder(const Message& message) {
  if (const char* wrong = orders_.Push(message.body, connection(), attachment_)) {
    return BreakOnAnswer(message, wrong);
  }
  link_.WakeBackground();
}

void Core::EndRequest(Request& request) {
  if (!request.is_async) {
    const uint32_t lane = request.index % kLeaseLane;
    if (requests_.MarkDone(request)) {
      sleepers_.WakeLane(lane);
    } else {
      requests_.Free(request);
    }
    return;
  }
  if (requests_.IsAbandoned(request)) return requests_.Free(request);
  if (request.callback != nullptr) {
    {
      LockGuard guard(callbacks_lock_);
      callbacks_.push_back(&request);
    }
    link_.WakeBackground();
    return;
  }
  completions_.Push(CompletionOf(request));
  requests_.Free(request);
  sleepers_.WakeLane(kLeaseLane);
}

ClientCompletion Core::CompletionOf(Request& request) {
  ClientCompletion completion;
  completion.user_data = request.user_data;
  completion.verb = request.asked.verb;
  completion.status = request.status;
  completion.block_count = request.block_count;
  if (!request.status.ok()) return completion;
  if (request.asked.verb == protocol::Verb::kAcquire) {
    completion.read_lease = ReadLease(std::move(request.lease));
  } else if (request.asked.verb == protocol::Verb::kReserve) {
    completion.write_lease = WriteLease(std::move(request.lease));
  }
  return completion;
}

void Core::BreakOnAnswer(const Message& message, const char* why) noexcept {
  try {
    Break("the daemon's answer to " + std::string(VerbName(message.verb)) + " (request " +
          std::to_string(message.request_id) + ", " + std::to_string(message.body.size()) +
          " bytes) cannot be right: " + why +
          "; update libterrace or terraced so that both are of one release");
  } catch (const std::bad_alloc&) {
    Break(why);
  }
}

void Core::Break(std::string_view why) {
  SetError(why);
  Teardown();
}

void Core::Teardown() {
  if (is_broken_) return;
  is_broken_ = true;
  link_.Detach();
  boot_id_ = 0;
  {
    // Unmapping takes long: the background thread does it.
    LockGuard guard(state_lock_);
    retired_ = std::move(attachment_);
  }
  if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->OnDisconnect();
  ListenForTurn(false);
  registry_.InvalidateAll();
  while (Request* request = requests_.ClaimBroken()) FailRequest(*request);
  sleepers_.WakeAll();
  link_.WakeBackground();
}

}  // namespace terrace::client
