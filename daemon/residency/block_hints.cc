#include "daemon/residency/block_hints.h"

#include <algorithm>

#include "daemon/residency/block_ranges.h"
#include "terrace/check.h"
#include "terrace/protocol_retention.h"

namespace terrace {

void BlockHints::Apply(BlockId id, const protocol::Hints& hints) {
  BlockMeta& meta = MetaOf(id);
  if (hints.priority != protocol::kPriorityUnset) ApplyPriority(id, hints.priority);
  if (hints.recompute_ns_per_token != 0) meta.recompute_ns_per_token = hints.recompute_ns_per_token;
  if (hints.flags & protocol::kHintNoStore) meta.is_no_store = true;
  if (hints.flags & protocol::kHintPin) SetPinned(id);
  ApplyTtl(id, hints);
  rows_.Update(id);
}

void BlockHints::ApplyTtl(BlockId id, const protocol::Hints& hints) {
  const bool is_of_priority = (hints.flags & protocol::kHintTtlOfPriority) != 0;
  const bool has_priority = hints.priority != protocol::kPriorityUnset;
  const bool has_end = hints.ttl_s != 0 && !is_of_priority;
  if (!has_end && !has_priority) return;
  StopExpiry(id);
  if (has_priority) {
    const bool ends = is_of_priority && hints.ttl_s != 0;
    if (ends || stays_.contains(id)) {
      stays_[id].priority_ends_us = ends ? d_.NowUs() + hints.ttl_s * kUsPerSecond : kNever;
    }
  }
  if (has_end) {
    ExpiryOf(id).expires_us = d_.NowUs() + hints.ttl_s * kUsPerSecond;
    const bool is_renewed = (hints.flags & protocol::kHintTtlFromHits) != 0;
    if (is_renewed || stays_.contains(id)) stays_[id].renewed_s = is_renewed ? hints.ttl_s : 0;
    updates_.Note(id);
    candidates_.NoteReadiness(id);
  }
  StartExpiry(id);
}

void BlockHints::ApplyPriority(BlockId id, uint8_t priority) {
  BlockMeta& meta = MetaOf(id);
  const Block& b = d_.block(id);
  if (meta.priority != priority) updates_.Note(id);
  meta.priority = std::min(priority, protocol::kPriorityMax);
  if (b.dram.row != kRowNone) d_.dram_policy->SetPriority(id, meta.priority);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (b.lower[t].row != kRowNone) d_.lower[t].policy->SetPriority(id, meta.priority);
  }
}

void BlockHints::ChangePin(BlockId id, bool is_pinned) {
  BlockMeta& meta = MetaOf(id);
  if (meta.is_pinned != is_pinned) {
    updates_.Note(id);
    CountPinned(id, is_pinned ? 1 : -1);
  }
  meta.is_pinned = is_pinned;
  rows_.Update(id);
  candidates_.Refresh(id);
}

void BlockHints::CountPinned(BlockId id, int32_t by) {
  d_.pinned_blocks.of_owner() += by;
  d_.pinned_bytes.of_owner() += by * static_cast<int64_t>(d_.group_of(d_.block(id)).block_bytes());
}

void BlockHints::OnBirth(BlockId id) {
  if (d_.block(id).is_pinned) CountPinned(id, 1);
}

void BlockHints::OnLeave(BlockId id) {
  if (!stays_.empty()) stays_.erase(id);
  BlockMeta& meta = MetaOf(id);
  if (!meta.is_pinned) return;
  CountPinned(id, -1);
  meta.is_pinned = false;
}

// ---- expiry ----

void BlockHints::RestoreExpiry(BlockId id, uint64_t expires_us) {
  TERRACE_CHECK(d_.block(id).expiry == kHandleNone, "a timer that runs is stopped first");
  ExpiryOf(id).expires_us = expires_us;
}

void BlockHints::AddExpiry(BlockId id) {
  BlockExpiry& expiry = ExpiryOf(id);
  expiry.expiry = d_.seams.deadlines.Add({.due_us = DueUs(id),
                                          .kind = DeadlineKind::kBlockExpiry,
                                          .domain_index = d_.domain_index,
                                          .id = id});
}

uint64_t BlockHints::DueUs(BlockId id) const {
  const uint64_t expires_us = d_.block(id).expires_us;
  if (stays_.empty()) return expires_us;
  const auto stay = stays_.find(id);
  return stay == stays_.end() ? expires_us : std::min(expires_us, stay->second.priority_ends_us);
}

bool BlockHints::OnExpiryDue(BlockId id) {
  ExpiryOf(id).expiry = kHandleNone;
  const auto stay = stays_.find(id);
  if (stay == stays_.end() || stay->second.priority_ends_us > d_.NowUs()) return true;
  stay->second.priority_ends_us = kNever;
  if (stay->second.renewed_s == 0) stays_.erase(stay);
  ApplyPriority(id, protocol::kPriorityDefault);
  rows_.Update(id);
  if (d_.block(id).expires_us <= d_.NowUs()) return true;
  StartExpiry(id);
  return false;
}

void BlockHints::RenewExpiry(BlockId id) {
  const auto stay = stays_.find(id);
  if (stay == stays_.end() || stay->second.renewed_s == 0) return;
  const uint64_t ttl_us = stay->second.renewed_s * kUsPerSecond;
  const uint64_t expires_us = d_.NowUs() + ttl_us;
  if (expires_us <= d_.block(id).expires_us) return;  // the eighth that it got more lasts yet
  const bool has_timer = d_.block(id).expiry != kHandleNone;
  StopExpiry(id);
  ExpiryOf(id).expires_us = expires_us + ttl_us / 8;
  updates_.Note(id);
  rows_.Update(id);
  if (has_timer) StartExpiry(id);
}

void BlockHints::RemoveExpiry(BlockId id) {
  BlockExpiry& expiry = ExpiryOf(id);
  d_.seams.deadlines.Remove(expiry.expiry);
  expiry.expiry = kHandleNone;
}

// ---- use ----

template <typename Tell>
void BlockHints::ForEachPolicy(std::span<const BlockId> run, const Tell& tell) {
  std::vector<BlockId> resident;
  resident.reserve(run.size());
  const auto of_tier = [&](EvictionPolicy& policy, auto copy_of) {
    resident.clear();
    for (const BlockId id : run) {
      if (copy_of(d_.block(id)).row != kRowNone) resident.push_back(id);
    }
    if (!resident.empty()) tell(policy, std::span<const BlockId>(resident));
  };
  of_tier(*d_.dram_policy, [](const Block& b) -> const BlockCopy& { return b.dram; });
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    of_tier(*d_.lower[t].policy, [t](const Block& b) -> const BlockCopy& { return b.lower[t]; });
  }
}

void BlockHints::Touch(std::span<const BlockId> run, const protocol::Hints& hints,
                       const Part& part) {
  TouchContext context = d_.ContextOf(hints);
  context.behind = part.behind;
  context.goes_on = part.goes_on;
  ForEachRange(run, [&](BlockRange range) { d_.index.Touch(range, context.now_us); });
  d_.admission->OnTouch(run, context);
  ForEachPolicy(run, [&](EvictionPolicy& policy, std::span<const BlockId> resident) {
    policy.OnTouch(resident, context);
  });
  Expect(run, hints);
}

void BlockHints::Expect(std::span<const BlockId> run, const protocol::Hints& hints) {
  if (hints.expected_reuse_ms == 0) return;
  const uint64_t now_us = d_.NowUs();
  const uint64_t at_us = now_us + hints.expected_reuse_ms * kUsPerMs;
  ForEachPolicy(run, [&](EvictionPolicy& policy, std::span<const BlockId> resident) {
    policy.OnExpected(resident, at_us, now_us);
  });
}

}  // namespace terrace
