#include "daemon/session/operator_requests.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "daemon/log/printable.h"
#include "terrace/protocol_operator.h"

namespace terrace {
namespace {

using protocol::Verb;

// Rows of a reply cost about as much as so many lookups.
constexpr uint32_t kHitRateCostBlocks = protocol::kBlocksPerTurnMax;
// A group is compared with others for about as much.
constexpr uint32_t kNearCostBlocks = 256;
// A block that is pinned costs as much as so many that are looked up.
constexpr uint32_t kPinCostBlocks = 4;

// Empty: nothing is wrong with it.
std::string WhyNoFilter(const protocol::EvictWhereRequest& asked) {
  constexpr uint32_t kKnownFlags = protocol::kEvictWhereDryRun | protocol::kEvictWhereShared;
  if ((asked.flags & ~kKnownFlags) != 0) {
    return "EvictWhere with flags " + std::to_string(asked.flags) + "; this daemon knows " +
           std::to_string(kKnownFlags) + ": clear the others";
  }
  if (asked.tier != protocol::kEvictWhereAllTiers && asked.tier >= protocol::kTierKindCount) {
    return "EvictWhere of tier " + std::to_string(asked.tier) +
           "; there are 0 (hbm) to 3 (redis), and 255 for all";
  }
  if (asked.idle_ms_min > protocol::kEvictWhereIdleMsMax) {
    return "EvictWhere of what was not used for " + std::to_string(asked.idle_ms_min) +
           " ms; the limit is " + std::to_string(protocol::kEvictWhereIdleMsMax) +
           ": name a shorter time";
  }
  return "";
}

bool IsPinName(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::string WhyNoPin(const protocol::NamedPinRequest& asked, std::string_view name) {
  if (asked.action > protocol::PinAction::kClear || asked.flags != 0) {
    return "NamedPin with action " + std::to_string(static_cast<uint32_t>(asked.action)) +
           " and flags " + std::to_string(asked.flags) +
           "; there are 0 (list), 1 (set) and 2 (clear), and no flags: is the client newer?";
  }
  if (asked.key_count > protocol::kKeysPerRequestMax) {
    return std::to_string(asked.key_count) + " keys; the limit of a request is " +
           std::to_string(protocol::kKeysPerRequestMax) + ": split it";
  }
  if (asked.action == protocol::PinAction::kList) return "";
  if (asked.name[sizeof(asked.name) - 1] != '\0' || !IsPinName(name)) {
    return "the pin's name '" + std::string(name) + "'; a name is 1 to " +
           std::to_string(sizeof(asked.name) - 1) + " letters, digits, '.', '_' and '-'";
  }
  if (asked.action == protocol::PinAction::kSet && asked.cap_bytes == 0) {
    return "pin " + std::string(name) + " with a cap of 0 bytes; say how many it may keep";
  }
  return "";
}

}  // namespace

RequestOutcome OperatorRequests::Step(const RequestContext& context, Store& store,
                                      uint32_t* budget_blocks) {
  if (frame_.verb == Verb::kReset) return StepReset(context, store, budget_blocks);
  if (frame_.verb == Verb::kList) return StepList(context, store, budget_blocks);
  if (frame_.verb == protocol::kVerbHitRate) return StepHitRate(context, store, budget_blocks);
  if (frame_.verb == protocol::kVerbEvictWhere) {
    return StepEvictWhere(context, store, budget_blocks);
  }
  if (frame_.verb == protocol::kVerbNamedPin) return StepNamedPin(context, store, budget_blocks);
  return StepExplain(context, store, budget_blocks);
}

void OperatorRequests::Restart() {
  operation_.emplace<std::monostate>();
  group_index_ = kAllGroups;
  group_handle_ = 0;
  next_ = 0;
  has_reset_ = has_filtered_ = is_through_ = has_ended_ = false;
  list_ = {};
  hit_rate_rows_.clear();
  explained_ = {};
  evicted_ = {};
  pinned_ = {};
}

RequestOutcome OperatorRequests::FinishErasing(const RequestContext& context, Store& store,
                                               ErasureReach reach) {
  is_through_ = true;
  const Status durable = store.operators().AwaitErasures(context.session, frame_.id, reach);
  if (durable.code() == StatusCode::kBusy) return RequestOutcome::kErasing;
  return durable.ok() ? Finish(context) : frame_.Fail(context, durable);
}

RequestOutcome OperatorRequests::Finish(const RequestContext& context) {
  Reply& reply = frame_.BeginReply(context);
  if (frame_.verb == Verb::kList) {
    reply.AddHead(list_.reply);
    reply.AddArray(std::span<const protocol::ListEntry>(list_.entries));
  } else if (frame_.verb == protocol::kVerbEvictWhere) {
    reply.AddHead(evicted_);
  }
  return RequestOutcome::kReply;
}

Error OperatorRequests::BeginList(const RequestContext& context, Store& store,
                                  protocol::ListRequest list) {
  if (list.entry_count_max == 0) {
    return frame_.Invalid("List of 0 entries at most; ask for 1 to " +
                          std::to_string(protocol::kBlocksPerTurnMax));
  }
  if (list.group_handle != 0) {
    protocol::KeysRequest asked{.group_handle = list.group_handle};
    TERRACE_RETURN_IF_REFUSED(frame_.ResolveGroup(context, false, &asked, &group_index_));
  }
  list.group_handle = group_index_;
  operation_.emplace<ListOperation>(store.operators().List(context.session, list, &list_));
  return {};
}

RequestOutcome OperatorRequests::StepList(const RequestContext& context, Store& store,
                                          uint32_t* budget_blocks) {
  if (!std::holds_alternative<ListOperation>(operation_)) {
    const Error begun = BeginList(context, store, frame_.Head<protocol::ListRequest>());
    if (!begun.ok()) return frame_.Fail(context, begun);
  }
  if (*budget_blocks == 0) return RequestOutcome::kMore;
  *budget_blocks = 0;
  const Result<Progress> listed = std::get<ListOperation>(operation_).Step();
  if (!listed.ok()) return frame_.Fail(context, listed.status());
  return *listed == Progress::kGoesOn ? RequestOutcome::kMore : Finish(context);
}

RequestOutcome OperatorRequests::StepReset(const RequestContext& context, Store& store,
                                           uint32_t* budget_blocks) {
  if (!std::holds_alternative<ResetOperation>(operation_)) {
    group_handle_ = frame_.Head<protocol::ResetRequest>().group_handle;
    protocol::KeysRequest asked{.group_handle = group_handle_};
    if (const Error resolved = frame_.ResolveGroup(context, false, &asked, &group_index_);
        !resolved.ok()) {
      return frame_.Fail(context, resolved);
    }
    operation_.emplace<ResetOperation>(store.operators().Reset(context.session, group_index_));
  }
  if (*budget_blocks == 0) return RequestOutcome::kMore;
  *budget_blocks = 0;
  const Result<Progress> reset = std::get<ResetOperation>(operation_).Step();
  if (!reset.ok()) return frame_.Fail(context, reset.status());
  has_reset_ = true;
  evicted_.block_count = std::get<ResetOperation>(operation_).erased_count();
  return *reset == Progress::kGoesOn ? RequestOutcome::kMore
                                     : FinishErasing(context, store, ErasureReach::kEverywhere);
}

RequestOutcome OperatorRequests::StepEvictWhere(const RequestContext& context, Store& store,
                                                uint32_t* budget_blocks) {
  const auto asked = frame_.Head<protocol::EvictWhereRequest>();
  if (!std::holds_alternative<EvictWhereOperation>(operation_)) {
    if (std::string why = WhyNoFilter(asked); !why.empty()) {
      return frame_.Fail(context, frame_.Invalid(std::move(why)));
    }
    operation_.emplace<EvictWhereOperation>(
        store.operators().EvictWhere(context.session, asked, &evicted_));
  }
  if (*budget_blocks == 0) return RequestOutcome::kMore;
  *budget_blocks = 0;
  const Result<Progress> evicted = std::get<EvictWhereOperation>(operation_).Step();
  if (!evicted.ok()) return frame_.Fail(context, evicted.status());
  has_filtered_ = true;
  if (*evicted == Progress::kGoesOn) return RequestOutcome::kMore;
  const bool is_dry_run = (asked.flags & protocol::kEvictWhereDryRun) != 0;
  const bool is_of_tiers_here = asked.tier != protocol::kEvictWhereAllTiers &&
                                asked.tier != static_cast<uint8_t>(protocol::TierKind::kRedis) &&
                                (asked.flags & protocol::kEvictWhereShared) == 0;
  const ErasureReach reach = is_of_tiers_here ? ErasureReach::kHere : ErasureReach::kEverywhere;
  return is_dry_run ? Finish(context) : FinishErasing(context, store, reach);
}

RequestOutcome OperatorRequests::StepNamedPin(const RequestContext& context, Store& store,
                                              uint32_t* budget_blocks) {
  const auto asked = frame_.Head<protocol::NamedPinRequest>();
  if (frame_.body.size_bytes() != sizeof(asked) + size_t{asked.key_count} * sizeof(BlockKey)) {
    return frame_.Malformed(context, std::to_string(asked.key_count) + " keys");
  }
  const std::string name = Printable(asked.name);
  if (std::string why = WhyNoPin(asked, name); !why.empty()) {
    return frame_.Fail(context, frame_.Invalid(std::move(why)));
  }
  const uint32_t cost_blocks =
      kPinCostBlocks * store.operators().KeyCost(context.session, kAllGroups);
  do {
    if (*budget_blocks == 0) return RequestOutcome::kMore;
    step_keys_.resize(
        std::min(asked.key_count - next_, std::max(*budget_blocks / cost_blocks, 1u)));
    frame_.body.ReadArray(sizeof(asked) + size_t{next_} * sizeof(BlockKey), std::span(step_keys_));
    const auto key_count = static_cast<uint32_t>(step_keys_.size());
    *budget_blocks -= std::min(*budget_blocks, std::max(key_count, 1u) * cost_blocks);
    const Status status = store.operators().NamedPin(
        {.session = context.session, .name = name, .request = asked}, step_keys_, next_, &pinned_);
    if (!status.ok()) return frame_.Fail(context, status);
    next_ += key_count;
  } while (next_ < asked.key_count);
  is_through_ = true;
  pinned_.reply.entry_count = static_cast<uint32_t>(pinned_.entries.size());
  Reply& reply = frame_.BeginReply(context);
  reply.AddHead(pinned_.reply);
  reply.AddArray(std::span<const protocol::NamedPinEntry>(pinned_.entries));
  return RequestOutcome::kReply;
}

RequestOutcome OperatorRequests::StepHitRate(const RequestContext& context, Store& store,
                                             uint32_t* budget_blocks) {
  const auto request = frame_.Head<protocol::HitRateRequest>();
  if (*budget_blocks < kHitRateCostBlocks / 2) {
    *budget_blocks = 0;  // at the beginning of the next turn
    return RequestOutcome::kMore;
  }
  *budget_blocks -= std::min(*budget_blocks, kHitRateCostBlocks);
  protocol::HitRateReply answer;
  const Status status =
      store.introspection().HitRates(context.session, request.first_row, &answer, &hit_rate_rows_);
  if (!status.ok()) return frame_.Fail(context, status);
  Reply& reply = frame_.BeginReply(context);
  reply.AddHead(answer);
  reply.AddArray(std::span<const protocol::HitRateRow>(hit_rate_rows_));
  return RequestOutcome::kReply;
}

RequestOutcome OperatorRequests::StepExplain(const RequestContext& context, Store& store,
                                             uint32_t* budget_blocks) {
  const auto request = frame_.Head<protocol::ExplainRequest>();
  if (frame_.body.size_bytes() != sizeof(request) + size_t{request.key_count} * sizeof(BlockKey)) {
    return frame_.Malformed(context, std::to_string(request.key_count) + " keys");
  }
  if (request.key_count == 0 || request.key_count > protocol::kKeysPerRequestMax) {
    return frame_.Fail(
        context, frame_.Invalid(std::to_string(request.key_count) + " keys; Explain takes 1 to " +
                                std::to_string(protocol::kKeysPerRequestMax)));
  }
  if (!std::holds_alternative<ExplainOperation>(operation_)) {
    operation_.emplace<ExplainOperation>(
        store.introspection().Explain({.session = context.session,
                                       .group = request.group,
                                       .key_count = request.key_count,
                                       .flags = request.flags},
                                      &explained_));
  }
  Progress progress = Progress::kGoesOn;
  while (progress != Progress::kDone) {
    const uint32_t left_count = std::min(request.key_count - next_, protocol::kBlocksPerTurnMax);
    const uint32_t cost_blocks = has_ended_ ? kNearCostBlocks : 1;
    if (*budget_blocks < cost_blocks) {
      *budget_blocks = 0;
      return RequestOutcome::kMore;
    }
    step_keys_.resize(has_ended_ ? 0 : std::min(left_count, *budget_blocks));
    frame_.body.ReadArray(sizeof(request) + size_t{next_} * sizeof(BlockKey),
                          std::span(step_keys_));
    const auto key_count = static_cast<uint32_t>(step_keys_.size());
    *budget_blocks -= std::max(key_count, cost_blocks);
    const Result<Progress> explained = std::get<ExplainOperation>(operation_).Step(step_keys_);
    if (!explained.ok()) return frame_.Fail(context, explained.status());
    progress = *explained;
    next_ += key_count;
    has_ended_ = progress == Progress::kStays;
  }
  Reply& reply = frame_.BeginReply(context);
  reply.AddHead(explained_.reply);
  reply.AddArray(std::span<const protocol::ExplainNear>(explained_.nears));
  reply.AddArray(std::span<const std::byte>(explained_.members));
  return RequestOutcome::kReply;
}

}  // namespace terrace
