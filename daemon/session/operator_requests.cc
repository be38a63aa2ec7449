#include "daemon/session/operator_requests.h"

#include <algorithm>

namespace terrace {
namespace {

using protocol::Verb;

// Rows of a reply cost about as much as so many lookups.
constexpr uint32_t kHitRateCostBlocks = protocol::kBlocksPerTurnMax;
// A group is compared with others for about as much.
constexpr uint32_t kNearCostBlocks = 256;

}  // namespace

RequestOutcome OperatorRequests::Step(const RequestContext& context, Store& store,
                                      uint32_t* budget_blocks) {
  if (frame_.verb == Verb::kReset) return StepReset(context, store, budget_blocks);
  if (frame_.verb == Verb::kList) return StepList(context, store, budget_blocks);
  if (frame_.verb == protocol::kVerbHitRate) return StepHitRate(context, store, budget_blocks);
  return StepExplain(context, store, budget_blocks);
}

void OperatorRequests::Restart() {
  group_index_ = kAllGroups;
  group_handle_ = 0;
  next_ = 0;
  cursor_ = 0;
  has_reset_ = is_through_ = false;
  list_ = {};
  list_entries_.clear();
  hit_rate_rows_.clear();
  explained_ = {};
}

RequestOutcome OperatorRequests::FinishErasing(const RequestContext& context, Store& store) {
  is_through_ = true;
  const Status durable = store.operators().AwaitErasures(context.session, frame_.id);
  if (durable.code() == StatusCode::kBusy) return RequestOutcome::kErasing;
  return durable.ok() ? Finish(context) : frame_.Fail(context, durable);
}

RequestOutcome OperatorRequests::Finish(const RequestContext& context) {
  Reply& reply = frame_.BeginReply(context);
  if (frame_.verb == Verb::kList) {
    reply.AddHead(list_);
    reply.AddArray(std::span<const protocol::ListEntry>(list_entries_));
  }
  return RequestOutcome::kReply;
}

RequestOutcome OperatorRequests::StepList(const RequestContext& context, Store& store,
                                          uint32_t* budget_blocks) {
  protocol::ListRequest list;
  if (!frame_.ReadWhole(&list)) return frame_.Malformed(context, "such a request");
  if (list.entry_count_max == 0) {
    return frame_.Fail(context, frame_.Invalid("List of 0 entries at most; ask for 1 to " +
                                               std::to_string(protocol::kBlocksPerTurnMax)));
  }
  const uint32_t entry_count_max = std::min(list.entry_count_max, protocol::kBlocksPerTurnMax);
  if (list.group_handle != 0) {
    protocol::KeysRequest asked{.group_handle = list.group_handle};
    if (const Status resolved = frame_.ResolveGroup(context, false, &asked, &group_index_);
        !resolved.ok()) {
      return frame_.Fail(context, resolved);
    }
  }
  list.group_handle = group_index_;
  if (*budget_blocks == 0) return RequestOutcome::kMore;
  *budget_blocks = 0;
  if (next_ > 0) list.cursor = list_.cursor;
  list.entry_count_max = entry_count_max - static_cast<uint32_t>(list_entries_.size());
  std::vector<protocol::ListEntry> step;
  const Status status = store.operators().List(context.session, list, &list_, &step);
  if (!status.ok()) return frame_.Fail(context, status);
  list_entries_.insert(list_entries_.end(), step.begin(), step.end());
  list_.entry_count = static_cast<uint32_t>(list_entries_.size());
  next_ += kListBlocksMax;
  const bool is_more = list_.cursor != 0 && next_ < protocol::kBlocksPerTurnMax &&
                       list_.entry_count < entry_count_max;
  return is_more ? RequestOutcome::kMore : Finish(context);
}

RequestOutcome OperatorRequests::StepReset(const RequestContext& context, Store& store,
                                           uint32_t* budget_blocks) {
  protocol::ResetRequest reset;
  if (!frame_.ReadWhole(&reset)) return frame_.Malformed(context, "such a request");
  group_handle_ = reset.group_handle;
  protocol::KeysRequest asked{.group_handle = reset.group_handle};
  if (const Status resolved = frame_.ResolveGroup(context, false, &asked, &group_index_);
      !resolved.ok()) {
    return frame_.Fail(context, resolved);
  }
  if (*budget_blocks == 0) return RequestOutcome::kMore;
  *budget_blocks = 0;
  const Status status = store.operators().Reset(context.session, group_index_, &cursor_);
  if (!status.ok()) return frame_.Fail(context, status);
  has_reset_ = true;
  return cursor_ != 0 ? RequestOutcome::kMore : FinishErasing(context, store);
}

RequestOutcome OperatorRequests::StepHitRate(const RequestContext& context, Store& store,
                                             uint32_t* budget_blocks) {
  protocol::HitRateRequest request;
  if (!frame_.ReadWhole(&request)) return frame_.Malformed(context, "such a request");
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
  protocol::ExplainRequest request;
  if (!frame_.body.Read(0, &request) ||
      frame_.body.size_bytes() != sizeof(request) + size_t{request.key_count} * sizeof(BlockKey)) {
    return frame_.Malformed(context, std::to_string(request.key_count) + " keys");
  }
  if (request.key_count == 0 || request.key_count > protocol::kKeysPerRequestMax) {
    return frame_.Fail(
        context, frame_.Invalid(std::to_string(request.key_count) + " keys; Explain takes 1 to " +
                                std::to_string(protocol::kKeysPerRequestMax)));
  }
  while (next_ < request.key_count && !explained_.is_finished) {
    if (*budget_blocks == 0) return RequestOutcome::kMore;
    const uint32_t key_count =
        std::min({request.key_count - next_, *budget_blocks, protocol::kBlocksPerTurnMax});
    step_keys_.resize(key_count);
    frame_.body.ReadArray(sizeof(request) + size_t{next_} * sizeof(BlockKey),
                          std::span(step_keys_));
    *budget_blocks -= key_count;
    const Status status =
        store.introspection().Explain(context.session, request.group, step_keys_, &explained_);
    if (!status.ok()) return frame_.Fail(context, status);
    next_ += key_count;
  }
  if (explained_.is_finished && explained_.nears.empty()) {
    if (*budget_blocks < kNearCostBlocks) {
      *budget_blocks = 0;
      return RequestOutcome::kMore;
    }
    *budget_blocks -= kNearCostBlocks;
    const Status status =
        store.introspection().Explain(context.session, request.group, {}, &explained_);
    if (!status.ok()) return frame_.Fail(context, status);
  }
  explained_.reply.key_count = request.key_count;
  Reply& reply = frame_.BeginReply(context);
  reply.AddHead(explained_.reply);
  reply.AddArray(std::span<const protocol::ExplainNear>(explained_.nears));
  return RequestOutcome::kReply;
}

}  // namespace terrace
