// The verbs about keys, worked off in steps of at most kBlocksPerTurnMax blocks.
#include <algorithm>
#include <bit>

#include "daemon/session/request.h"

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

Request::Outcome Request::Step(RequestContext& context, Store& store, uint32_t* budget_blocks) {
  return has_keys_ ? StepKeys(context, store, budget_blocks)
                   : StepOther(context, store, budget_blocks);
}

Request::Outcome Request::StepKeys(const RequestContext& context, Store& store,
                                   uint32_t* budget_blocks) {
  // Evict without keys is one call about everything; any other verb without keys is answered empty.
  if (keys_.key_count == 0 && verb_ != Verb::kEvict) return Finish(context);
  KeysQuery query;
  if (wants_ready_) {
    wants_ready_ = false;
    const uint32_t key_count = std::min(keys_.key_count, kReadyKeysPerTurnMax);
    const auto keys = body_.View<BlockKey>(keys_offset_bytes_, key_count);
    query = NextQuery(context, keys.empty() ? key_count : 0);
    if (!keys.empty()) query.keys = keys;
    auto& acquire = operation_.emplace<AcquireOperation>(store.prefixes().Acquire(&acquire_));
    const Result<Progress> held = acquire.StepReady(query);
    if (!held.ok()) return Fail(context, held.status());
    Passed(acquire.passed_count());
    *budget_blocks -= std::min(*budget_blocks, next_ / kReadyKeysPerBlockCost);
  }
  bool is_more = keys_.key_count == 0 || next_ < keys_.key_count || cursor_ != 0;
  while (is_more) {
    if (*budget_blocks == 0) return Outcome::kMore;
    // A step that goes on is about the keys it began with, whatever the budget is now.
    const uint32_t cost_blocks = KeyCost(context, store);
    const uint32_t affordable_count = std::max(*budget_blocks / cost_blocks, 1u);
    const uint32_t key_count =
        cursor_ != 0 || is_sought_
            ? static_cast<uint32_t>(step_keys_.size())
            : std::min({keys_.key_count - next_, affordable_count, protocol::kBlocksPerTurnMax});
    query = NextQuery(context, key_count);
    *budget_blocks -= std::min(*budget_blocks, std::max(key_count, 1u) * cost_blocks);
    const bool may_seek = verb_ == Verb::kAcquire || verb_ == Verb::kPrefetch;
    if (may_seek && !is_sought_) {
      is_sought_ = true;
      if (store.prefixes().Seek(query, &seek_end_us_).code() == StatusCode::kBusy)
        return Outcome::kSeeking;
    }
    is_sought_ = false;
    const Result<Progress> called = CallKeys(store, query);
    if (!called.ok()) return Fail(context, called.status());
    if (cursor_ != 0) {
      *budget_blocks = 0;
      continue;
    }
    Passed(verb_ == Verb::kReserve ? static_cast<uint32_t>(reserve_.keys.size()) - next_
                                   : key_count);
    if (*called == Progress::kAwaits) return Outcome::kSeeking;
    if (*called == Progress::kFollows) return Outcome::kWaiting;
    is_more = *called == Progress::kGoesOn;
  }
  if (verb_ == Verb::kEvict && (keys_.flags & protocol::kEvictDryRun) == 0) {
    return FinishErasing(context, store);
  }
  return Finish(context);
}

// Of one key, in blocks.
uint32_t Request::KeyCost(const RequestContext& context, Store& store) const {
  switch (verb_) {
    case Verb::kReserve:
      return kReserveCostBlocks +
             context.handles[keys_.group_handle - 1].member_count / kTakenSlotsPerBlockCost;
    case Verb::kAcquire:
      return 1 + static_cast<uint32_t>(std::popcount(keys_.member_mask)) / kToldSlotsPerBlockCost;
    default:
      return store.operators().KeyCost(context.session, group_index_);
  }
}

void Request::Passed(uint32_t key_count) {
  next_ += key_count;
  if (key_count == 0) return;
  body_.Read(keys_offset_bytes_ + (next_ - 1) * sizeof(BlockKey), &last_key_);
}

KeysQuery Request::NextQuery(const RequestContext& context, uint32_t key_count) {
  step_keys_.resize(key_count);
  // Of a chain the tail is evicted first.
  const bool is_from_end = verb_ == Verb::kEvict && (keys_.flags & protocol::kEvictSubtree) == 0;
  const uint32_t first = is_from_end ? keys_.key_count - next_ - key_count : next_;
  body_.ReadArray(keys_offset_bytes_ + first * sizeof(BlockKey), std::span(step_keys_));
  step_events_.clear();
  if ((keys_.flags & protocol::kReserveHasEvents) != 0) {
    step_events_.resize(key_count);
    body_.ReadArray(
        keys_offset_bytes_ + keys_.key_count * sizeof(BlockKey) + next_ * sizeof(uint64_t),
        std::span(step_events_));
  }
  const bool is_chain = (keys_.flags & protocol::kKeysFlat) == 0;
  return {.session = context.session,
          .request_id = id_,
          .group_index = group_index_,
          .flags = keys_.flags,
          .member_mask = keys_.member_mask,
          .parent = is_chain && next_ > 0 ? last_key_ : keys_.parent,
          .first_position = is_chain ? keys_.first_position + next_ : keys_.first_position,
          .hints = keys_.hints,
          .keys = step_keys_,
          .key_count_of_request = keys_.key_count,
          .event_hashes = step_events_};
}

Result<Progress> Request::CallKeys(Store& store, const KeysQuery& query) {
  switch (verb_) {
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
      TERRACE_RETURN_IF_ERROR(store.operators().Evict(query, &cursor_, &evicted_, &children_gone_));
      break;
    default:
      TERRACE_RETURN_IF_ERROR(CallPin(store, query));
  }
  return next_ + query.keys.size() < keys_.key_count ? Progress::kGoesOn : Progress::kDone;
}

Status Request::CallQuery(Store& store, const KeysQuery& query) {
  std::vector<protocol::QueriedBlock> step;
  TERRACE_RETURN_IF_ERROR(store.operators().Query(query, &step));
  queried_.insert(queried_.end(), step.begin(), step.end());
  return Status::Ok();
}

Status Request::CallPin(Store& store, const KeysQuery& query) {
  protocol::PinReply step;
  TERRACE_RETURN_IF_ERROR(store.operators().Pin(query, &step));
  pinned_.block_count += step.block_count;
  return Status::Ok();
}

}  // namespace terrace
