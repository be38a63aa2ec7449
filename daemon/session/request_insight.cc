// The verbs of protocol_insight.h, and what a recording says of the others.
#include <algorithm>

#include "daemon/session/request.h"

namespace terrace {

using protocol::Verb;

// Rows of a reply cost about as much as so many lookups.
static constexpr uint32_t kHitRateCostBlocks = protocol::kBlocksPerTurnMax;
// A group is compared with others for about as much.
static constexpr uint32_t kNearCostBlocks = 256;

Request::Outcome Request::StepHitRate(const RequestContext& context, Store& store,
                                      uint32_t* budget_blocks) {
  protocol::HitRateRequest request;
  if (!ReadWhole(&request)) return Malformed(context, "such a request");
  if (*budget_blocks < kHitRateCostBlocks / 2) {
    *budget_blocks = 0;  // at the beginning of the next turn
    return Outcome::kMore;
  }
  *budget_blocks -= std::min(*budget_blocks, kHitRateCostBlocks);
  protocol::HitRateReply answer;
  const Status status =
      store.introspection().HitRates(context.session, request.first_row, &answer, &hit_rate_rows_);
  if (!status.ok()) return Fail(context, status);
  reply_.Begin(verb_, id_, context.boot_id, Status::Ok());
  reply_.AddHead(answer);
  reply_.AddArray(std::span<const protocol::HitRateRow>(hit_rate_rows_));
  return Outcome::kReply;
}

Request::Outcome Request::StepExplain(const RequestContext& context, Store& store,
                                      uint32_t* budget_blocks) {
  protocol::ExplainRequest request;
  if (!body_.Read(0, &request) ||
      body_.size_bytes() != sizeof(request) + size_t{request.key_count} * sizeof(BlockKey)) {
    return Malformed(context, std::to_string(request.key_count) + " keys");
  }
  if (request.key_count == 0 || request.key_count > protocol::kKeysPerRequestMax) {
    return Fail(context, Invalid(std::to_string(request.key_count) + " keys; Explain takes 1 to " +
                                 std::to_string(protocol::kKeysPerRequestMax)));
  }
  while (next_ < request.key_count && !explained_.is_finished) {
    if (*budget_blocks == 0) return Outcome::kMore;
    const uint32_t key_count =
        std::min({request.key_count - next_, *budget_blocks, protocol::kBlocksPerTurnMax});
    step_keys_.resize(key_count);
    body_.ReadArray(sizeof(request) + size_t{next_} * sizeof(BlockKey), std::span(step_keys_));
    *budget_blocks -= key_count;
    const Status status =
        store.introspection().Explain(context.session, request.group, step_keys_, &explained_);
    if (!status.ok()) return Fail(context, status);
    next_ += key_count;
  }
  if (explained_.is_finished && explained_.nears.empty()) {
    if (*budget_blocks < kNearCostBlocks) {
      *budget_blocks = 0;
      return Outcome::kMore;
    }
    *budget_blocks -= kNearCostBlocks;
    const Status status =
        store.introspection().Explain(context.session, request.group, {}, &explained_);
    if (!status.ok()) return Fail(context, status);
  }
  explained_.reply.key_count = request.key_count;
  reply_.Begin(verb_, id_, context.boot_id, Status::Ok());
  reply_.AddHead(explained_.reply);
  reply_.AddArray(std::span<const protocol::ExplainNear>(explained_.nears));
  return Outcome::kReply;
}

bool Request::Describe(const RequestContext& context, TracedRequest* traced) const {
  traced->verb = verb_;
  if (verb_ == Verb::kRelease) {
    protocol::ReleaseRequest release;
    if (!ReadWhole(&release)) return false;
    traced->lease = release.token;
    traced->hints = release.hints;
    return true;
  }
  if (verb_ == Verb::kCommit) {
    protocol::CommitRequest commit;
    if (!body_.Read(0, &commit)) return false;
    traced->lease = commit.token;
    traced->key_count = commit.entry_count;
    traced->good_count = commit_.reply.sealed_count;
    return true;
  }
  const bool is_traced =
      verb_ == Verb::kMatch || verb_ == Verb::kAcquire || verb_ == Verb::kReserve;
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
  if (verb_ == Verb::kMatch) {
    traced->good_count = match_.reply.block_count;
  } else if (verb_ == Verb::kAcquire) {
    traced->lease = acquire_.reply.token;
    traced->good_count = acquire_.reply.block_count;
  } else {
    traced->lease = reserve_.reply.token;
    traced->good_count = static_cast<uint32_t>(
        std::count_if(reserve_.keys.begin(), reserve_.keys.end(),
                      [](const protocol::ReservedKey& key) { return key.status == 0; }));
  }
  traced->keys.resize(std::min(keys_.key_count, TraceRecorder::kTracedKeysMax));
  return body_.ReadArray(keys_offset_bytes_, std::span(traced->keys));
}

bool Request::TakeErasure(const RequestContext& context, ErasureSummary* erased) {
  const bool has_evicted = verb_ == Verb::kEvict && evicted_.block_count > 0 &&
                           (keys_.flags & protocol::kEvictDryRun) == 0;
  if (is_erasure_told_ || !(has_evicted || has_reset_)) return false;
  is_erasure_told_ = true;
  *erased = {
      .verb = verb_, .key_count = keys_.key_count, .is_whole = is_through_, .counts = evicted_};
  if (keys_.group_handle != 0 && keys_.group_handle <= context.handles.size()) {
    erased->group = context.handles[keys_.group_handle - 1].group;
  }
  return true;
}

}  // namespace terrace
