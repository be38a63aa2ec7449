#include "daemon/session/key_requests.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "daemon/session/hint_table.h"
#include "daemon/session/verb_table.h"
#include "terrace/check.h"

namespace terrace {

using protocol::Verb;

namespace {

// A key of Reserve may evict a block, which costs as much as this many lookups; so many slots of
// its members that are taken, or only told, cost as much as one.
constexpr uint32_t kReserveCostBlocks = 8;
constexpr uint32_t kTakenSlotsPerBlockCost = 4;
constexpr uint32_t kToldSlotsPerBlockCost = 16;
// So many keys that are compared with runs cost as much as one lookup.
constexpr uint32_t kReadyKeysPerBlockCost = kReadyKeysPerTurnMax / protocol::kBlocksPerTurnMax;

}  // namespace

void AddAcquired(const AcquireResult& result, Reply* reply) {
  reply->AddHead(result.reply);
  reply->AddArray(std::span<const protocol::BlockSpan>(result.spans));
  reply->AddArray(std::span<const SlotAddress>(result.slots));
}

void AddReserved(const ReserveResult& result, Reply* reply) {
  reply->AddHead(result.reply);
  reply->AddArray(std::span<const protocol::ReservedKey>(result.keys));
  reply->AddArray(std::span<const SlotRef>(result.slots));
}

void KeyRequests::Restart() {
  operation_.emplace<std::monostate>();
  keys_ = {};
  group_index_ = kAllGroups;
  keys_offset_bytes_ = 0;
  next_ = 0;
  seek_end_us_ = 0;
  is_sought_ = stays_ = wants_ready_ = is_through_ = false;
  RestartResult(&acquire_, &AcquireResult::spans, &AcquireResult::slots);
  RestartResult(&match_, &PrefixMatch::spans);
  RestartResult(&reserve_, &ReserveResult::keys, &ReserveResult::slots);
  queried_.clear();
  evicted_ = {};
  pinned_ = {};
}

size_t KeyRequests::result_bytes() const {
  const auto bytes_of = [](const auto&... vectors) {
    return ((vectors.capacity() * sizeof(vectors[0])) + ...);
  };
  return bytes_of(acquire_.slots, acquire_.spans, reserve_.keys, reserve_.slots, match_.spans,
                  queried_);
}

bool KeyRequests::is_small() const {
  return std::max({acquire_.slots.capacity(), reserve_.slots.capacity(), match_.spans.capacity(),
                   queried_.capacity()}) <= kResultsKept;
}

std::span<const protocol::BlockSpan> KeyRequests::spans() const {
  if (frame_.verb == Verb::kAcquire) return acquire_.spans;
  if (frame_.verb == Verb::kPrefetch) return match_.spans;
  return {};
}

RequestOutcome KeyRequests::Begin(const RequestContext& context, size_t offset_bytes) {
  if (!frame_.body.Read(offset_bytes, &keys_)) return frame_.Malformed(context, "its head");
  keys_offset_bytes_ = offset_bytes + sizeof(keys_);
  const bool has_events =
      frame_.verb == Verb::kReserve && (keys_.flags & protocol::kReserveHasEvents) != 0;
  const size_t key_bytes = sizeof(BlockKey) + (has_events ? sizeof(uint64_t) : 0);
  if (frame_.body.size_bytes() != keys_offset_bytes_ + keys_.key_count * key_bytes) {
    return frame_.Malformed(context, std::to_string(keys_.key_count) + " keys");
  }
  const Error checked = CheckKeys(context);
  wants_ready_ = frame_.verb == Verb::kAcquire && keys_.member_mask == 0 && keys_.flags == 0;
  return checked.ok() ? RequestOutcome::kMore : frame_.Fail(context, checked);
}

Error KeyRequests::CheckKeys(const RequestContext& context) {
  if (keys_.key_count > protocol::kKeysPerRequestMax) {
    return frame_.Invalid(std::to_string(keys_.key_count) + " keys; the limit of a request is " +
                          std::to_string(protocol::kKeysPerRequestMax) + ": split it");
  }
  if ((keys_.flags & ~FindVerb(frame_.verb)->key_flags) != 0) {
    return frame_.Invalid("flags " + std::to_string(keys_.flags) + "; " +
                          std::string(VerbName(frame_.verb)) + " knows " +
                          std::to_string(FindVerb(frame_.verb)->key_flags) + ": clear the others");
  }
  TERRACE_RETURN_IF_REFUSED(CheckHints(frame_.verb, keys_.hints));
  if (frame_.verb == Verb::kEvict && keys_.key_count == 0 &&
      (keys_.flags & protocol::kEvictSubtree) == 0) {
    return frame_.Invalid("Evict without keys; set the subtree flag to evict everything");
  }
  const bool may_mean_all = frame_.verb == Verb::kEvict || frame_.verb == Verb::kPin;
  TERRACE_RETURN_IF_REFUSED(frame_.ResolveGroup(context, may_mean_all, &keys_, &group_index_));
  return CheckReplySize();
}

// A reply is one message, so what it could grow to must fit one.
Error KeyRequests::CheckReplySize() {
  const size_t members = static_cast<size_t>(std::popcount(keys_.member_mask));
  size_t key_bytes = 0;
  if (frame_.verb == Verb::kAcquire) {
    key_bytes = sizeof(protocol::BlockSpan) + members * sizeof(SlotAddress);
  } else if (frame_.verb == Verb::kReserve) {
    key_bytes = sizeof(protocol::ReservedKey) + members * sizeof(SlotRef);
  }
  constexpr size_t kArraysBytesMax = protocol::kMessageBytesMax - 4096;
  if (keys_.key_count * key_bytes <= kArraysBytesMax) return {};
  return frame_.Invalid(std::to_string(keys_.key_count) + " keys of " + std::to_string(members) +
                        " members; the slots of " + std::to_string(kArraysBytesMax / key_bytes) +
                        " keys fit a reply: ask for fewer keys, or let each rank Join");
}

RequestOutcome KeyRequests::Step(const RequestContext& context, Store& store,
                                 uint32_t* budget_blocks) {
  // Evict without keys is one call about everything; any other verb without keys is answered empty.
  if (keys_.key_count == 0 && frame_.verb != Verb::kEvict) return Finish(context);
  KeysQuery query;
  if (wants_ready_) {
    wants_ready_ = false;
    const uint32_t key_count = std::min(keys_.key_count, kReadyKeysPerTurnMax);
    const auto keys = frame_.body.View<BlockKey>(keys_offset_bytes_, key_count);
    query = NextQuery(context, keys.empty() ? key_count : 0);
    if (!keys.empty()) query.keys = keys;
    auto& acquire = operation_.emplace<AcquireOperation>(store.prefixes().Acquire(&acquire_));
    const Result<Progress> held = acquire.StepReady(query);
    if (!held.ok()) return frame_.Fail(context, held.status());
    Passed(acquire.passed_count());
    *budget_blocks -= std::min(*budget_blocks, next_ / kReadyKeysPerBlockCost);
  }
  bool is_more = keys_.key_count == 0 || next_ < keys_.key_count;
  while (is_more) {
    if (*budget_blocks == 0) return RequestOutcome::kMore;
    // A step that goes on is about the keys it began with, whatever the budget is now.
    const uint32_t cost_blocks = KeyCost(context, store);
    const uint32_t affordable_count = std::max(*budget_blocks / cost_blocks, 1u);
    const uint32_t key_count =
        stays_ || is_sought_
            ? static_cast<uint32_t>(step_keys_.size())
            : std::min({keys_.key_count - next_, affordable_count, protocol::kBlocksPerTurnMax});
    query = NextQuery(context, key_count);
    *budget_blocks -= std::min(*budget_blocks, std::max(key_count, 1u) * cost_blocks);
    const bool may_seek = frame_.verb == Verb::kAcquire || frame_.verb == Verb::kPrefetch;
    if (may_seek && !is_sought_) {
      is_sought_ = true;
      if (store.prefixes().Seek(query, &seek_end_us_).code() == StatusCode::kBusy)
        return RequestOutcome::kSeeking;
    }
    is_sought_ = false;
    const Result<Progress> called = CallKeys(store, query);
    if (!called.ok()) return frame_.Fail(context, called.status());
    stays_ = *called == Progress::kStays;
    if (stays_) {
      *budget_blocks = 0;
      continue;
    }
    Passed(frame_.verb == Verb::kReserve ? static_cast<uint32_t>(reserve_.keys.size()) - next_
                                         : key_count);
    if (*called == Progress::kAwaits) return RequestOutcome::kSeeking;
    if (*called == Progress::kFollows) return RequestOutcome::kWaiting;
    is_more = *called == Progress::kGoesOn;
  }
  if (frame_.verb == Verb::kEvict && (keys_.flags & protocol::kEvictDryRun) == 0) {
    return FinishErasing(context, store);
  }
  return Finish(context);
}

// A key's cost, in blocks.
uint32_t KeyRequests::KeyCost(const RequestContext& context, Store& store) const {
  switch (frame_.verb) {
    case Verb::kReserve: {
      const OpenedHandle& handle = context.handles[keys_.group_handle - 1];
      return kReserveCostBlocks + handle.member_count / kTakenSlotsPerBlockCost +
             handle.part_count / Group::kRootsPerLookup;
    }
    case Verb::kAcquire:
      return 1 + static_cast<uint32_t>(std::popcount(keys_.member_mask)) / kToldSlotsPerBlockCost;
    case Verb::kEvict:
    case Verb::kPin:
    case Verb::kTouch: {
      const uint32_t members =
          keys_.group_handle == 0 ? 0 : context.handles[keys_.group_handle - 1].member_count;
      return store.operators().KeyCost(context.session, group_index_) *
             Group::ChangeCostBlocks(members);
    }
    default:
      return store.operators().KeyCost(context.session, group_index_);
  }
}

void KeyRequests::Passed(uint32_t key_count) {
  next_ += key_count;
  TERRACE_CHECK(next_ <= keys_.key_count, "no more keys pass than were asked for");
}

KeysQuery KeyRequests::NextQuery(const RequestContext& context, uint32_t key_count) {
  TERRACE_CHECK(key_count <= keys_.key_count - next_, "a step is about keys that are left");
  step_keys_.resize(key_count);
  // A chain is evicted tail first.
  const bool is_from_end =
      frame_.verb == Verb::kEvict && (keys_.flags & protocol::kEvictSubtree) == 0;
  const uint32_t first = is_from_end ? keys_.key_count - next_ - key_count : next_;
  const bool has_keys =
      frame_.body.ReadArray(keys_offset_bytes_ + first * sizeof(BlockKey), std::span(step_keys_));
  TERRACE_CHECK(has_keys, "Begin compared the body with its counts: no key is a step's before");
  step_events_.clear();
  if ((keys_.flags & protocol::kReserveHasEvents) != 0) {
    step_events_.resize(key_count);
    frame_.body.ReadArray(
        keys_offset_bytes_ + keys_.key_count * sizeof(BlockKey) + next_ * sizeof(uint64_t),
        std::span(step_events_));
  }
  const bool is_chain = (keys_.flags & protocol::kKeysFlat) == 0;
  BlockKey parent = keys_.parent;
  if (is_chain && first > 0) {
    frame_.body.Read(keys_offset_bytes_ + (first - 1) * sizeof(BlockKey), &parent);
  }
  BlockKey last;
  if (frame_.verb == Verb::kAcquire && keys_.key_count > 0) {
    frame_.body.Read(keys_offset_bytes_ + (keys_.key_count - 1) * sizeof(BlockKey), &last);
  }
  return {.session = context.session,
          .request_id = frame_.id,
          .group_index = group_index_,
          .flags = keys_.flags,
          .member_mask = keys_.member_mask,
          .parent = parent,
          .first_position = is_chain ? keys_.first_position + first : keys_.first_position,
          .hints = frame_.Allowed(keys_.hints),
          .keys = step_keys_,
          .key_count_of_request = keys_.key_count,
          .last_key = last,
          .event_hashes = step_events_};
}

Result<Progress> KeyRequests::CallKeys(Store& store, const KeysQuery& query) {
  switch (frame_.verb) {
    case Verb::kMatch:
      return OperationOf<MatchOperation>([&] { return store.prefixes().Match(&match_); })
          .Step(query);
    case Verb::kPrefetch:
      return OperationOf<PrefetchOperation>([&] { return store.prefixes().Prefetch(&match_); })
          .Step(query);
    case Verb::kAcquire:
      return OperationOf<AcquireOperation>([&] { return store.prefixes().Acquire(&acquire_); })
          .Step(query);
    case Verb::kReserve:
      return OperationOf<ReserveOperation>([&] { return store.storing().Reserve(&reserve_); })
          .Step(query);
    case Verb::kWait:
      return OperationOf<WaitOperation>([&] { return store.operators().Wait(); }).Step(query);
    case Verb::kTouch:
      TERRACE_RETURN_IF_ERROR(store.leases().Touch(query));
      break;
    case Verb::kQuery:
      TERRACE_RETURN_IF_ERROR(CallQuery(store, query));
      break;
    case Verb::kEvict:
      return OperationOf<EvictOperation>([&] { return store.operators().Evict(&evicted_); })
          .Step(query);
    default:
      TERRACE_RETURN_IF_ERROR(CallPin(store, query));
  }
  return next_ + query.keys.size() < keys_.key_count ? Progress::kGoesOn : Progress::kDone;
}

Status KeyRequests::CallQuery(Store& store, const KeysQuery& query) {
  std::vector<protocol::QueriedBlock> step;
  TERRACE_RETURN_IF_ERROR(store.operators().Query(query, &step));
  queried_.insert(queried_.end(), step.begin(), step.end());
  return Status::Ok();
}

Status KeyRequests::CallPin(Store& store, const KeysQuery& query) {
  protocol::PinReply step;
  TERRACE_RETURN_IF_ERROR(store.operators().Pin(query, &step));
  pinned_.block_count += step.block_count;
  return Status::Ok();
}

RequestOutcome KeyRequests::Finish(const RequestContext& context) {
  Reply& reply = frame_.BeginReply(context);
  switch (frame_.verb) {
    case Verb::kMatch:
    case Verb::kPrefetch:
      reply.AddHead(match_.reply);
      reply.AddArray(std::span<const protocol::BlockSpan>(match_.spans));
      break;
    case Verb::kAcquire:
      AddAcquired(acquire_, &reply);
      break;
    case Verb::kReserve:
      AddReserved(reserve_, &reply);
      break;
    case Verb::kQuery:
      reply.AddArray(std::span<const protocol::QueriedBlock>(queried_));
      break;
    case Verb::kEvict:
      reply.AddHead(evicted_);
      break;
    case Verb::kPin:
      reply.AddHead(pinned_);
      break;
    default:
      break;  // the status says all
  }
  return RequestOutcome::kReply;
}

RequestOutcome KeyRequests::AnswerMiss(const RequestContext& context, std::string_view no_room) {
  if (frame_.verb == Verb::kReserve) {
    if (keys_.key_count > kResultsKept) {
      return frame_.Fail(context, {StatusCode::kNoSpace, std::string(no_room)});
    }
    constexpr protocol::ReservedKey kNoRoom{.status = static_cast<uint8_t>(StatusCode::kNoSpace)};
    reserve_.reply.key_count = keys_.key_count;
    reserve_.reply.member_mask = keys_.member_mask;
    reserve_.keys.assign(keys_.key_count, kNoRoom);
  }
  return Finish(context);
}

RequestOutcome KeyRequests::FinishErasing(const RequestContext& context, Store& store) {
  is_through_ = true;
  const Status durable = store.operators().AwaitErasures(context.session, frame_.id);
  if (durable.code() == StatusCode::kBusy) return RequestOutcome::kErasing;
  return durable.ok() ? Finish(context) : frame_.Fail(context, durable);
}

bool KeyRequests::Describe(const RequestContext& context, TracedRequest* traced) const {
  // A Touch may say why a request ended whose lease is gone.
  const bool is_end =
      frame_.verb == Verb::kTouch && keys_.hints.end_reason != protocol::EndReason::kUnknown;
  const bool is_traced = is_end || frame_.verb == Verb::kMatch || frame_.verb == Verb::kAcquire ||
                         frame_.verb == Verb::kReserve;
  if (!is_traced || keys_.group_handle == 0 || keys_.group_handle > context.handles.size()) {
    return false;
  }
  const OpenedHandle& handle = context.handles[keys_.group_handle - 1];
  traced->group = handle.group;
  traced->block_tokens = handle.block_tokens;
  traced->parent = keys_.parent;
  traced->first_position = keys_.first_position;
  traced->key_count = keys_.key_count;
  traced->is_flat = (keys_.flags & protocol::kKeysFlat) != 0;
  traced->hints = keys_.hints;
  if (frame_.verb == Verb::kMatch) {
    traced->good_count = match_.reply.block_count;
  } else if (frame_.verb == Verb::kAcquire) {
    traced->lease = acquire_.reply.token;
    traced->good_count = acquire_.reply.block_count;
  } else if (frame_.verb == Verb::kReserve) {
    traced->lease = reserve_.reply.token;
    traced->good_count = static_cast<uint32_t>(
        std::count_if(reserve_.keys.begin(), reserve_.keys.end(),
                      [](const protocol::ReservedKey& key) { return key.status == 0; }));
  }
  traced->keys.resize(std::min(keys_.key_count, TraceRecorder::kTracedKeysMax));
  return frame_.body.ReadArray(keys_offset_bytes_, std::span(traced->keys));
}

}  // namespace terrace
