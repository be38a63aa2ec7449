#include "client/core/reader.h"

#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "src/verb_names.h"
#include "terrace/protocol_introspection.h"

namespace terrace::client {
namespace {

constexpr std::string_view kNoMemory =
    "no memory for what the daemon sent; the connection is given up and made again";

}  // namespace

Reader::Reader(const ClientOptions& options, Connection& connection, ReaderRole& role,
               const Receivers& receivers)
    : options_(options),
      connection_(connection),
      role_(role),
      to_(receivers),
      answers_(connection, receivers.leases) {}

void Reader::Begin(Session session) {
  role_.Take();
  frames_ = std::move(session.frames);
  connection_.SetAttachment(session.attachment);
  is_broken_ = false;
  try {
    to_.pins.Adopt(*session.attachment);
    const Status attached = connection_.Attach(std::move(session.socket), session.connection);
    if (attached.ok()) {
      Dispatch();
    } else {
      BreakUnheard(attached);
    }
  } catch (const std::bad_alloc&) {
    Break(kNoMemory);  // who kept the role here would wait for it at the next connection
  }
  Leave();
  connection_.WakeWaiting();
  to_.pins.OnConnected();
}

void Reader::End() {
  role_.Take();
  Teardown();
  role_.Leave();
  role_.WakeAll();
}

void Reader::ReadWhile(const Awaited& awaited, uint64_t deadline_us) {
  Link& link = connection_.link();
  link.ListenInCaller();
  const uint64_t spin_until_us = MonotonicUs() + options_.reply_spin_us;
  while (!is_broken_ && !awaited.is_over()) {
    const uint64_t now_us = MonotonicUs();
    if (now_us >= spin_until_us && !Sleep(awaited, deadline_us)) {
      if (MonotonicUs() >= deadline_us) return;
      continue;
    }
    if (now_us >= deadline_us) return;
    ReadOnce();
  }
}

// False at the deadline. Others end requests, too: those whose deadline has passed, for one.
bool Reader::Sleep(const Awaited& awaited, uint64_t deadline_us) {
  const Link& link = connection_.link();
  if (awaited.completions == nullptr) return link.WaitReadable(deadline_us);
  const CompletionQueue::Waiting waiting(awaited.completions);
  return awaited.is_over() || link.WaitReadable(deadline_us, waiting.fd());
}

bool Reader::ReadOnce() {
  if (is_broken_) return false;
  try {
    const std::span<std::byte> space = frames_.WritableSpace();
    const ssize_t received = connection_.link().Receive(space);
    if (received > 0) {
      frames_.Advance(static_cast<size_t>(received));
      Dispatch();
      return !is_broken_;
    }
    if (received < 0 && errno == EAGAIN) return false;
    if (received < 0 && errno == EINTR) return true;
    Break(received == 0
              ? "the daemon closed the connection; the client goes on trying to connect"
              : "the connection to the daemon broke; the client goes on trying to connect");
  } catch (const std::bad_alloc&) {
    Break(kNoMemory);
  }
  return false;
}

void Reader::Leave() {
  role_.Leave();
  if (to_.requests.is_any_asynchronous() || to_.leases.is_any_coming() ||
      to_.pins.is_turn_awaited()) {
    connection_.link().ListenInBackground();
  }
}

void Reader::Dispatch() {
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

void Reader::OnMessage(const Message& message) {
  if (message.prefix.boot_id != connection_.boot_id()) {
    return Break("another daemon answers on this connection; the client connects anew");
  }
  if (message.verb == protocol::kVerbWorkOrder) return OnWorkOrder(message);
  if (message.verb == protocol::kVerbPinTurnBegins) return to_.pins.OnTurnBegins();
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

void Reader::OnAnswer(const Message& message) {
  if ((message.request_id & kUnawaitedSlot) == kUnawaitedSlot) return OnUnawaited(message);
  const auto [claim, request, verb] = to_.requests.table().ClaimAnswered(message.request_id);
  if (claim == RequestTable::Claim::kUnknown) {
    return BreakOnAnswer(message, "no such request is pending");
  }
  const bool is_right_verb = message.verb == verb;
  if (claim == RequestTable::Claim::kLate) {
    if (is_right_verb) answers_.GiveBack(message);
  } else if (!is_right_verb) {
    to_.requests.Fail(*request);
  } else {
    if (claim == RequestTable::Claim::kAbandoned && Answers::GivesLease(verb)) {
      // Who gave up a later page of a Join has let go of all of it: Leases::GiveUpJoin.
      if (request->asked.first_block == 0) answers_.GiveBack(message);
    } else if (const char* wrong = answers_.Take(message, *request)) {
      BreakOnAnswer(message, wrong);  // first: who is woken next may ask why
    }
    to_.requests.End(*request);
  }
  if (!is_right_verb) BreakOnAnswer(message, "the request had another verb");
}

void Reader::OnUnawaited(const Message& message) {
  if (message.verb == protocol::Verb::kOpen) return OnReopened(message);
  // It does not know the verb, and closes the connection next.
  const bool is_turnless =
      (message.verb == protocol::kVerbPinTurn || message.verb == protocol::kVerbDeviceReport) &&
      message.status().code() == StatusCode::kInvalid;
  if (is_turnless) to_.pins.OnTurnUnknown(message.prefix.boot_id);
}

void Reader::OnReopened(const Message& message) {
  if (!message.status().ok()) {
    return connection_.SetError("terraced does not open a SpaceGroup again: " +
                                std::string(Answers::TextOf(message)));
  }
  protocol::OpenReply reply;
  if (!BodyReader(message.body).Read(&reply)) {
    return BreakOnAnswer(message, "it is shorter than an OpenReply");
  }
  std::string why;
  for (uint32_t index = 0; index < to_.groups.count(); ++index) {
    Group& group = *to_.groups.At(index);
    if (group.id() != reply.group || group.handle(connection_.number()) != 0) continue;
    const Result<uint32_t> handle = group.DecodeOpenReply(message.body, &why);
    if (!handle.ok()) return BreakOnAnswer(message, handle.status().what());
    group.Bind(connection_.number(), *handle);
  }
}

void Reader::OnCompletion(const Message& message) {
  protocol::Completion completion;
  if (!BodyReader(message.body).Read(&completion)) {
    return BreakOnAnswer(message, "it is shorter than a Completion");
  }
  to_.leases.OnCompletion(completion, message);
  role_.WakeLane(kLeaseLane);
}

void Reader::OnLeaseRevoked(const Message& message) {
  protocol::LeaseRevoked revoked;
  if (!BodyReader(message.body).Read(&revoked)) {
    return BreakOnAnswer(message, "it is shorter than a LeaseRevoked");
  }
  to_.leases.OnRevoked(revoked.token);
  role_.WakeLane(kLeaseLane);
}

void Reader::OnSegmentRevoke(const Message& message) {
  Attachment& attachment = *connection_.readers_attachment();
  protocol::SegmentRevoke revoke;
  if (!BodyReader(message.body).Read(&revoke) ||
      revoke.segment >= attachment.geometry().segments_max) {
    return BreakOnAnswer(message, "it names no segment");
  }
  if (attachment.RevokeSegment(revoke.segment)) {
    connection_.SendUnmapped(connection_.number(), revoke.segment);
  }
}

void Reader::OnWorkOrder(const Message& message) {
  const char* wrong =
      to_.orders.Push(message.body, connection_.number(), connection_.readers_attachment());
  if (wrong != nullptr) return BreakOnAnswer(message, wrong);
  connection_.link().WakeBackground();
}

void Reader::BreakOnAnswer(const Message& message, const char* why) noexcept {
  try {
    Break("the daemon's answer to " + std::string(VerbNameOr(message.verb, "an unasked message")) +
          " (request " + std::to_string(message.request_id) + ", " +
          std::to_string(message.body.size()) + " bytes) cannot be right: " + why +
          "; update libterrace or terraced so that both are of one release");
  } catch (const std::bad_alloc&) {
    Break(why);
  }
}

// Else every asynchronous request would end at its deadline.
void Reader::BreakUnheard(const Status& attached) {
  Break(std::string(attached.what()) + " (errno " + std::to_string(attached.detail()) +
        "): as many descriptors as fs.epoll.max_user_watches allows this user are listened to, or "
        "memory is short; raise that limit; the connection is given up and made again");
}

void Reader::Break(std::string_view why) {
  connection_.SetError(why);
  Teardown();
}

void Reader::Teardown() {
  if (is_broken_) return;
  is_broken_ = true;
  connection_.Detach();
  to_.pins.OnDisconnected();
  to_.leases.OnDisconnected();
  to_.requests.FailAll();
  role_.WakeAll();
  connection_.link().WakeBackground();
}

}  // namespace terrace::client
