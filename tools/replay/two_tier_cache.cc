#include "tools/replay/two_tier_cache.h"

#include <algorithm>

#include "terrace/check.h"
#include "tools/replay/replay_cache.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kAncestorsWrittenMax = 64;  // as the daemon's write-back

}  // namespace

TwoTierCache::TwoTierCache(const DenseTrace& trace, const TwoTierOptions& options,
                           const Policies& policies)
    : trace_(trace),
      options_(options),
      admission_(policies.admission),
      shared_(policies.shared),
      dram_{policies.dram, options.dram_blocks, std::vector<uint8_t>(trace.unique_count()),
            std::vector<uint32_t>(trace.unique_count())},
      lower_{policies.lower, options.lower_blocks, std::vector<uint8_t>(trace.unique_count()),
             std::vector<uint32_t>(trace.unique_count())},
      used_us_(trace.unique_count()),
      is_known_(trace.unique_count()) {
  TERRACE_CHECK(options.dram_blocks > 0, "a tier of no blocks replays nothing");
}

BlockTraits TwoTierCache::TraitsOf(BlockId id) const {
  return {.key = ReplayCache::KeyOf(id),
          .byte_count = options_.block_bytes,
          .position = trace_.position(id),
          .block_tokens = trace_.block_tokens(),
          .parent = trace_.parent(id)};
}

void TwoTierCache::Serve(size_t request_index) {
  const TraceRequest& request = trace_.request(request_index);
  std::span<const BlockId> path = trace_.path(request_index);
  path = path.first(std::min<size_t>(path.size(), options_.dram_blocks));
  if (path.empty() || !request.is_asked()) return;
  now_us_ = request.timestamp_ms * 1000;
  size_t dram_count = 0;
  while (dram_count < path.size() && dram_.is_resident[path[dram_count]]) ++dram_count;
  size_t hit_count = dram_count;
  while (hit_count < path.size() && lower_.is_resident[path[hit_count]]) ++hit_count;
  dram_hit_count_ += dram_count;
  lower_hit_count_ += hit_count - dram_count;
  shared_hit_count_ += CountSharedHits(path.subspan(hit_count));

  TouchContext context{.now_us = now_us_, .session_hash = request.session_hash};
  if (dram_count > 0) dram_.policy.OnTouch(path.first(dram_count), context);
  if (hit_count > 0) admission_.OnTouch(path.first(hit_count), context);
  TouchBelow(path.first(hit_count), context);
  InsertInDram(path, dram_count);
  TellAdmission(path);
  for (const BlockId id : path.subspan(hit_count)) {
    WriteBelow(id, AdmissionMoment::kSealed);
  }
  if (request.end_reason != protocol::EndReason::kUnknown) {
    context.end_reason = request.end_reason;
    dram_.policy.OnTouch(path.last(1), context);
    admission_.OnTouch(path.last(1), context);
    TouchBelow(path.last(1), context);
  }
  OfferToShared(path, hit_count);
}

void TwoTierCache::TellAdmission(std::span<const BlockId> path) {
  for (const BlockId id : path) {
    used_us_[id] = now_us_;
    if (is_known_[id]) continue;
    is_known_[id] = 1;
    admission_.OnInsert(id, TraitsOf(id), now_us_);
  }
}

uint32_t TwoTierCache::CountSharedHits(std::span<const BlockId> rest) {
  if (shared_ == nullptr) return 0;
  uint32_t count = 0;
  for (; count < rest.size() && shared_->Has(rest[count]); ++count) shared_->Read(rest[count]);
  return count;
}

void TwoTierCache::OfferToShared(std::span<const BlockId> path, size_t local_hit_count) {
  if (shared_ == nullptr) return;
  for (size_t i = 0; i < path.size(); ++i) shared_->Offer(path[i], i < local_hit_count);
}

// What was in DRAM alone: then the run has holes.
void TwoTierCache::TouchBelow(std::span<const BlockId> hits, const TouchContext& context) {
  below_.clear();
  for (const BlockId id : hits) {
    if (lower_.is_resident[id]) below_.push_back(id);
  }
  if (!below_.empty()) lower_.policy.OnTouch(below_, context);
}

void TwoTierCache::InsertBelow(BlockId id) {
  lower_.policy.OnInsert(id, TraitsOf(id), now_us_);
  lower_.is_resident[id] = 1;
  ++lower_.resident_count;
  lower_.policy.OnCandidate(id);
  const BlockId parent = trace_.parent(id);
  if (parent != kBlockNone && lower_.child_counts[parent]++ == 0) lower_.policy.OnHeld(parent);
}

void TwoTierCache::InsertInDram(std::span<const BlockId> path, size_t known_count) {
  if (known_count == path.size()) return;
  if (known_count > 0) {
    const BlockId parent = path[known_count - 1];
    if (dram_.child_counts[parent]++ == 0) dram_.policy.OnHeld(parent);
  }
  for (size_t i = known_count; i < path.size(); ++i) {
    MakeRoom(&dram_, 1);
    dram_.policy.OnInsert(path[i], TraitsOf(path[i]), now_us_);
    dram_.is_resident[path[i]] = 1;
    dram_.child_counts[path[i]] = i + 1 < path.size() ? 1 : 0;
    ++dram_.resident_count;
  }
  dram_.policy.OnCandidate(path.back());
}

void TwoTierCache::Remove(Level* level, BlockId id) {
  level->policy.OnHeld(id);
  level->policy.OnErase(id);
  level->is_resident[id] = 0;
  --level->resident_count;
  const BlockId parent = trace_.parent(id);
  if (parent == kBlockNone) return;
  if (--level->child_counts[parent] == 0 && level->is_resident[parent]) {
    level->policy.OnCandidate(parent);
  }
}

void TwoTierCache::MakeRoom(Level* level, uint32_t coming_count) {
  while (level->resident_count + coming_count > level->capacity_blocks) {
    const BlockId victim = level->policy.Victim();
    TERRACE_CHECK(victim != kBlockNone && level->is_resident[victim],
                  "a policy names a resident candidate");
    Remove(level, victim);
    if (level == &dram_) {
      MoveBelow(victim);
    } else {
      admission_.OnDropBelow(now_us_ - used_us_[victim]);
    }
    ForgetIfGone(victim);
  }
}

bool TwoTierCache::MayGoBelow(BlockId id) const {
  const BlockId parent = trace_.parent(id);
  return !lower_.is_resident[id] && (parent == kBlockNone || lower_.is_resident[parent]);
}

void TwoTierCache::WriteBelow(BlockId id, AdmissionMoment moment) {
  if (options_.lower_blocks == 0 || !MayGoBelow(id)) return;
  if (!admission_.Admits({.moment = moment, .id = id, .traits = TraitsOf(id), .now_us = now_us_})) {
    return;
  }
  ++written_count_;
  InsertBelow(id);
  MakeRoom(&lower_);
}

// A tail does not go below before what it hangs from: that is written in its place.
void TwoTierCache::MoveBelow(BlockId id) {
  if (options_.lower_blocks == 0 || lower_.is_resident[id]) return;
  if (MayGoBelow(id)) return WriteBelow(id, AdmissionMoment::kEvicted);
  ancestors_.clear();
  for (BlockId above = trace_.parent(id); above != kBlockNone && !lower_.is_resident[above];
       above = trace_.parent(above)) {
    ancestors_.push_back(above);
    if (ancestors_.size() > kAncestorsWrittenMax) return;
  }
  while (!ancestors_.empty()) {
    WriteBelow(ancestors_.back(), AdmissionMoment::kEvicted);
    ancestors_.pop_back();
  }
}

void TwoTierCache::ForgetIfGone(BlockId id) {
  if (!is_known_[id] || dram_.is_resident[id] || lower_.is_resident[id]) return;
  is_known_[id] = 0;
  admission_.OnErase(id);
}

}  // namespace terrace::tools
