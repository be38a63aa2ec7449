#include "daemon/session/request.h"

#include <bit>

#include "daemon/session/hint_table.h"

namespace terrace {

using protocol::Verb;

namespace {

bool IsKeysVerb(Verb verb) {
  switch (verb) {
    case Verb::kMatch:
    case Verb::kAcquire:
    case Verb::kPrefetch:
    case Verb::kReserve:
    case Verb::kQuery:
    case Verb::kWait:
    case Verb::kEvict:
    case Verb::kPin:
      return true;
    default:
      return false;
  }
}

uint32_t AllowedFlags(Verb verb) {
  switch (verb) {
    case Verb::kAcquire:
      return protocol::kKeysFlat | protocol::kAcquireFollow | protocol::kAcquireByParts |
             protocol::kAcquireDevice;
    case Verb::kReserve:
      return protocol::kKeysFlat | protocol::kReserveHasEvents;
    case Verb::kEvict:
      return protocol::kKeysFlat | protocol::kEvictDryRun | protocol::kEvictSubtree;
    case Verb::kPin:
      return protocol::kKeysFlat | protocol::kPinClear;
    default:
      return protocol::kKeysFlat;
  }
}

uint64_t MembersMask(uint32_t member_count) {
  return member_count >= 64 ? ~uint64_t{0} : (uint64_t{1} << member_count) - 1;
}

// A new result that keeps the memory of its vectors.
template <typename R, typename... Vectors>
void Restart(R* result, Vectors... vectors) {
  R fresh;
  ((fresh.*vectors = std::move(result->*vectors), (fresh.*vectors).clear()), ...);
  *result = std::move(fresh);
}

}  // namespace

void Request::ResetResults() {
  operation_.emplace<std::monostate>();
  why_.clear();
  has_keys_ = false;
  keys_ = {};
  group_index_ = kAllGroups;
  keys_offset_bytes_ = 0;
  next_ = 0;
  last_key_ = {};
  cursor_ = 0;
  seek_end_us_ = 0;
  is_sought_ = wants_ready_ = false;
  checksums_read_ = 0;
  Restart(&acquire_, &AcquireResult::spans, &AcquireResult::slots);
  Restart(&match_, &PrefixMatch::spans);
  Restart(&reserve_, &ReserveResult::keys, &ReserveResult::slots);
  join_.reset();
  is_write_lease_ = has_more_ = false;
  Restart(&commit_, &CommitResult::entries);
  queried_.clear();
  evicted_ = {};
  children_gone_.clear();
  has_reset_ = is_erasure_told_ = is_through_ = false;
  pinned_ = {};
  turn_.reset();
  list_ = {};
  list_entries_.clear();
  hit_rate_rows_.clear();
  explained_ = {};
}

Request::Outcome Request::Begin(Message message, const RequestContext& context) {
  ResetResults();
  verb_ = message.verb;
  id_ = message.request_id;
  body_ = std::move(message.body);
  if (IsKeysVerb(verb_)) return BeginKeys(context, 0);
  if (verb_ == Verb::kTouch) {
    protocol::TouchRequest touch;
    if (!body_.Read(0, &touch)) return Malformed(context, "its head");
    if (touch.token.is_zero()) return BeginKeys(context, sizeof(touch));
  }
  return Outcome::kMore;
}

bool Request::Recycle() {
  constexpr size_t kSlotsKept = 8192;
  operation_.emplace<std::monostate>();
  body_.Clear();
  why_.clear();
  return acquire_.slots.capacity() <= kSlotsKept && reserve_.slots.capacity() <= kSlotsKept &&
         match_.spans.capacity() <= kSlotsKept && commit_.entries.capacity() <= kSlotsKept &&
         queried_.capacity() <= kSlotsKept && why_.capacity() <= kSlotsKept;
}

size_t Request::result_bytes() const {
  const auto bytes_of = [](const auto&... vectors) {
    return ((vectors.capacity() * sizeof(vectors[0])) + ...);
  };
  return bytes_of(acquire_.slots, acquire_.spans, reserve_.keys, reserve_.slots, match_.spans,
                  commit_.entries, queried_);
}

Request::Outcome Request::BeginKeys(const RequestContext& context, size_t offset_bytes) {
  has_keys_ = true;
  if (!body_.Read(offset_bytes, &keys_)) return Malformed(context, "its head");
  keys_offset_bytes_ = offset_bytes + sizeof(keys_);
  const bool has_events =
      verb_ == Verb::kReserve && (keys_.flags & protocol::kReserveHasEvents) != 0;
  const size_t key_bytes = sizeof(BlockKey) + (has_events ? sizeof(uint64_t) : 0);
  if (body_.size_bytes() != keys_offset_bytes_ + keys_.key_count * key_bytes) {
    return Malformed(context, std::to_string(keys_.key_count) + " keys");
  }
  const Status checked = CheckKeys(context);
  wants_ready_ = verb_ == Verb::kAcquire && keys_.member_mask == 0 && keys_.flags == 0;
  return checked.ok() ? Outcome::kMore : Fail(context, checked);
}

Status Request::CheckKeys(const RequestContext& context) {
  if (keys_.key_count > protocol::kKeysPerRequestMax) {
    return Invalid(std::to_string(keys_.key_count) + " keys; the limit of a request is " +
                   std::to_string(protocol::kKeysPerRequestMax) + ": split it");
  }
  if ((keys_.flags & ~AllowedFlags(verb_)) != 0) {
    return Invalid("flags " + std::to_string(keys_.flags) + "; " + std::string(VerbName(verb_)) +
                   " knows " + std::to_string(AllowedFlags(verb_)) + ": clear the others");
  }
  TERRACE_RETURN_IF_ERROR(CheckHints(verb_, keys_.hints, &why_));
  if (verb_ == Verb::kEvict && keys_.key_count == 0 &&
      (keys_.flags & protocol::kEvictSubtree) == 0) {
    return Invalid("Evict without keys; set the subtree flag to evict everything");
  }
  TERRACE_RETURN_IF_ERROR(ResolveGroup(context));
  return CheckReplySize();
}

Status Request::ResolveGroup(const RequestContext& context) {
  const bool may_mean_all = verb_ == Verb::kEvict || verb_ == Verb::kPin;
  if (keys_.group_handle == 0 && may_mean_all) {
    keys_.member_mask = 0;
    return Status::Ok();
  }
  if (keys_.group_handle == 0 || keys_.group_handle > context.handles.size()) {
    return Invalid("group handle " + std::to_string(keys_.group_handle) + "; this session has " +
                   std::to_string(context.handles.size()) + ": Open the group first");
  }
  const OpenedHandle& handle = context.handles[keys_.group_handle - 1];
  if ((keys_.member_mask & ~MembersMask(handle.member_count)) != 0) {
    return Invalid("member mask " + std::to_string(keys_.member_mask) + "; the group has " +
                   std::to_string(handle.member_count) + " members");
  }
  if (handle.is_inexact && (keys_.hints.flags & protocol::kHintExact) != 0) {
    why_ =
        "the group keeps its blocks under a lossy codec, or as chunks, and the request asks for "
        "exact ones: open the Space without 'quantisation' and of another layout, or do not ask "
        "for exact";
    return Status(StatusCode::kUnsupported, "the group is inexact");
  }
  group_index_ = handle.group_index;
  if (keys_.member_mask == 0) keys_.member_mask = handle.self_mask;
  return Status::Ok();
}

// A reply is one message, so what it could grow to must fit one.
Status Request::CheckReplySize() {
  const size_t members = static_cast<size_t>(std::popcount(keys_.member_mask));
  size_t key_bytes = 0;
  if (verb_ == Verb::kAcquire) {
    key_bytes = sizeof(protocol::BlockSpan) + members * sizeof(SlotAddress);
  } else if (verb_ == Verb::kReserve) {
    key_bytes = sizeof(protocol::ReservedKey) + members * sizeof(SlotRef);
  }
  constexpr size_t kArraysBytesMax = protocol::kMessageBytesMax - 4096;
  if (keys_.key_count * key_bytes <= kArraysBytesMax) return Status::Ok();
  return Invalid(std::to_string(keys_.key_count) + " keys of " + std::to_string(members) +
                 " members; the slots of " + std::to_string(kArraysBytesMax / key_bytes) +
                 " keys fit a reply: ask for fewer keys, or let each rank Join");
}

Status Request::Invalid(std::string sentence) {
  why_ = std::move(sentence);
  return Status(StatusCode::kInvalid, "the request is not valid");
}

void Request::Answer(const RequestContext& context, Status status, std::string text) {
  why_ = std::move(text);
  reply_.Begin(verb_, id_, context.boot_id, status);
  if (status.ok()) {
    reply_.AddArray(std::span<const char>(why_));
  } else {
    reply_.AddText(why_.empty() ? std::string_view(status.what()) : why_);
  }
}

Request::Outcome Request::Malformed(const RequestContext& context, const std::string& what) {
  Answer(context, Status(StatusCode::kInvalid),
         std::string(VerbName(verb_)) + " of " + std::to_string(body_.size_bytes()) +
             " bytes; that is not the size of " + what +
             ": the connection is closed, since its frames cannot be told apart any more");
  return Outcome::kMalformed;
}

Request::Outcome Request::Fail(const RequestContext& context, Status status) {
  Answer(context, status, std::move(why_));
  return Outcome::kReply;
}

Request::Outcome Request::Finish(const RequestContext& context) {
  reply_.Begin(verb_, id_, context.boot_id, Status::Ok());
  AddResults();
  return Outcome::kReply;
}

void Request::AddResults() {
  const auto add_acquired = [this] {
    reply_.AddHead(acquire_.reply);
    reply_.AddArray(std::span<const protocol::BlockSpan>(acquire_.spans));
    reply_.AddArray(std::span<const SlotAddress>(acquire_.slots));
  };
  const auto add_reserved = [this] {
    reply_.AddHead(reserve_.reply);
    reply_.AddArray(std::span<const protocol::ReservedKey>(reserve_.keys));
    reply_.AddArray(std::span<const SlotRef>(reserve_.slots));
  };
  switch (verb_) {
    case Verb::kMatch:
    case Verb::kPrefetch:
      reply_.AddHead(match_.reply);
      return reply_.AddArray(std::span<const protocol::BlockSpan>(match_.spans));
    case Verb::kAcquire:
      return add_acquired();
    case Verb::kReserve:
      return add_reserved();
    case Verb::kJoin:
      return is_write_lease_ ? add_reserved() : add_acquired();
    case Verb::kCommit:
      reply_.AddHead(commit_.reply);
      return reply_.AddArray(std::span<const StatusCode>(commit_.entries));
    case Verb::kQuery:
      return reply_.AddArray(std::span<const protocol::QueriedBlock>(queried_));
    case Verb::kEvict:
      return reply_.AddHead(evicted_);
    case Verb::kPin:
      return reply_.AddHead(pinned_);
    case Verb::kOpen:
      reply_.AddHead(opened_);
      return reply_.AddArray(std::span<const protocol::OpenedMember>(opened_members_));
    case Verb::kList:
      reply_.AddHead(list_);
      return reply_.AddArray(std::span<const protocol::ListEntry>(list_entries_));
    default:
      if (turn_) reply_.AddHead(*turn_);
      return;  // else the status says all
  }
}

bool Request::has_pending_blocks() const {
  const std::vector<protocol::BlockSpan>* spans = nullptr;
  if (verb_ == Verb::kAcquire || verb_ == Verb::kJoin) spans = &acquire_.spans;
  if (verb_ == Verb::kPrefetch) spans = &match_.spans;
  if (spans == nullptr) return false;
  for (const protocol::BlockSpan& span : *spans) {
    if (span.state != protocol::SpanState::kReady) return true;
  }
  return false;
}

}  // namespace terrace
