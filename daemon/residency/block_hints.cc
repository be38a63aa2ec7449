#include "daemon/residency/block_hints.h"

#include <algorithm>

#include "daemon/residency/block_ranges.h"
#include "terrace/check.h"

namespace terrace {

void BlockHints::Apply(BlockId id, const protocol::Hints& hints) {
  BlockMeta& meta = MetaOf(id);
  if (hints.priority != protocol::kPriorityUnset) ApplyPriority(id, hints.priority);
  if (hints.recompute_ns_per_token != 0) meta.recompute_ns_per_token = hints.recompute_ns_per_token;
  if (hints.flags & protocol::kHintNoStore) meta.is_no_store = true;
  if (hints.flags & protocol::kHintPin) SetPinned(id);
  if (hints.ttl_s != 0) {
    StopExpiry(id);
    ExpiryOf(id).expires_us = d_.NowUs() + hints.ttl_s * kUsPerSecond;
    updates_.Note(id);
    StartExpiry(id);
    candidates_.NoteReadiness(id);
  }
  rows_.Update(id);
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
  expiry.expiry = d_.seams.deadlines.Add({.due_us = expiry.expires_us,
                                          .kind = DeadlineKind::kBlockExpiry,
                                          .domain_index = d_.domain_index,
                                          .id = id});
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

void BlockHints::Touch(std::span<const BlockId> run, const protocol::Hints& hints) {
  const TouchContext context = d_.ContextOf(hints);
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
