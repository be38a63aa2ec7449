#include "client/core/answers.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string_view>

#include "client/core/commit.h"
#include "client/core/replies.h"

namespace terrace::client {
namespace {

constexpr Status kWrongAnswer(StatusCode::kGone, "the daemon's answer cannot be right");

// Of the pages of a Join all name one lease and its members: slots are told apart by these. Only
// the first writes them: who gives up a later page lets go of the lease while that is read.
template <typename Reply>
const char* TakeNames(const Reply& reply, const Asked& asked, LeaseState* lease) {
  if (asked.first_block == 0) {
    lease->token = reply.token;
    lease->member_mask = reply.member_mask;
    return nullptr;
  }
  if (reply.token != lease->token) return "it is a page of another lease than the page before";
  if (reply.member_mask != lease->member_mask) {
    return "its members are not those of the page before";
  }
  return nullptr;
}

const char* DecodeLease(const Message& message, const Asked& asked, LeaseState* lease) {
  if (lease->kind == LeaseState::Kind::kRead) {
    AcquireAnswer answer{.reply = {}, .spans = &lease->spans, .slots = &lease->slots};
    const char* wrong = DecodeAcquire(message.body, asked, &answer);
    if (wrong == nullptr) wrong = TakeNames(answer.reply, asked, lease);
    lease->block_count = answer.reply.block_count;
    lease->token_count = answer.reply.token_count;
    lease->has_more = HasMore(answer.reply.flags, asked);
    return wrong;
  }
  ReserveAnswer answer{.reply = {}, .keys = &lease->reserved, .slots = &lease->slot_refs};
  const char* wrong = DecodeReserve(message.body, asked, &answer);
  if (wrong == nullptr) wrong = TakeNames(answer.reply, asked, lease);
  lease->block_count = static_cast<uint32_t>(lease->reserved.size());
  lease->has_more = HasMore(answer.reply.reserved, asked);
  return wrong;
}

// A Join answers with the kind of lease its token names, which may not be the one the user meant.
bool IsOtherKind(const Message& message, const Request& request) {
  if (request.asked.verb != protocol::Verb::kJoin) return false;
  LeaseState other;
  other.kind = request.lease->kind == LeaseState::Kind::kRead ? LeaseState::Kind::kWrite
                                                              : LeaseState::Kind::kRead;
  return DecodeLease(message, request.asked, &other) == nullptr;
}

}  // namespace

std::string_view Answers::TextOf(const Message& message) {
  const size_t bytes = std::min<size_t>(message.body.size(), protocol::kErrorTextBytesMax);
  return {reinterpret_cast<const char*>(message.body.data()), bytes};
}

bool Answers::GivesLease(protocol::Verb verb) {
  return verb == protocol::Verb::kAcquire || verb == protocol::Verb::kReserve ||
         verb == protocol::Verb::kJoin;
}

const char* Answers::Take(const Message& message, Request& request) {
  request.status = message.status();
  if (!request.status.ok() && !message.body.empty()) {
    SetErrorOf(connection_, request.id, TextOf(message));
  }
  if (request.asked.verb == protocol::Verb::kCommit) return TakeCommit(message, request);
  if (!request.status.ok()) return nullptr;
  if (GivesLease(request.asked.verb)) return TakeLease(message, request);
  if (const char* wrong = CheckAnswer(message.body, request.asked)) {
    request.status = kWrongAnswer;
    return wrong;
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
  return nullptr;
}

const char* Answers::TakeLease(const Message& message, Request& request) {
  LeaseState& lease = *request.lease;
  const bool is_first_page = request.asked.first_block == 0;
  if (is_first_page) {
    lease.connection = request.connection;
    lease.attachment = connection_.readers_attachment();
  }
  lease.request_id = request.id;
  const char* wrong = nullptr;
  Status status;
  try {
    wrong = DecodeLease(message, request.asked, &lease);
    if (wrong != nullptr && IsOtherKind(message, request)) {
      wrong = nullptr;
      status = Status(StatusCode::kInvalid, "the token names a lease of the other kind");
    } else if (wrong == nullptr && lease.has_more) {
      return nullptr;  // Join asks for the next page
    } else if (wrong == nullptr) {
      status = lease.kind == LeaseState::Kind::kRead ? lease.PrepareRead() : lease.PrepareWrite();
      if (status.code() == StatusCode::kInvalid) wrong = status.what();
    }
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kNoSpace, "no memory for the lease");
  }
  if (wrong != nullptr) {
    if (is_first_page) lease.token = {};
    request.status = kWrongAnswer;
    return wrong;
  }
  if (!status.ok()) {
    request.status = status;
    if (!is_first_page) {
      leases_.GiveUpJoin(lease);  // as its caller may at this moment
    } else {
      lease.token = {};
      GiveBack(message);
    }
    return nullptr;
  }
  leases_.Admit(lease);
  return nullptr;
}

const char* Answers::TakeCommit(const Message& message, Request& request) {
  if (!request.status.ok()) {
    ReturnWritten(request);
    return nullptr;
  }
  protocol::CommitReply reply;
  std::span<const std::byte> entry_statuses;
  if (const char* wrong = DecodeCommit(message.body, request.asked, &reply, &entry_statuses)) {
    request.status = kWrongAnswer;
    return wrong;
  }
  const StatusCode refusal = AccountCommit(request, reply, entry_statuses);
  if (refusal != StatusCode::kOk) {
    request.status = Status(refusal, "the daemon refused a part; no block became visible");
  }
  if ((request.commit.flags & protocol::kCommitRelease) != 0) leases_.EndedByCommit(*request.lease);
  return nullptr;
}

void Answers::GiveBack(const Message& message) {
  LeaseToken token;
  if (!message.status().ok() || !GivesLease(message.verb)) return;
  static_assert(offsetof(protocol::AcquireReply, token) == 0);
  static_assert(offsetof(protocol::ReserveReply, token) == 0);
  if (BodyReader(message.body).Read(&token) && !token.is_zero()) leases_.GiveBack(token);
}

}  // namespace terrace::client
