#include "daemon/rule/filtered_eviction.h"

#include <utility>

#include "daemon/block/keyed_group_files.h"
#include "terrace/check.h"

namespace terrace {

Status FilteredEviction::Begin() {
  is_begun_ = true;
  if (is_of_shared() && d_.options.shared.tier == nullptr) {
    return Status(StatusCode::kUnsupported, "this domain has no tier of that kind");
  }
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (d_.lower[t].tier->kind() == filter_.tier) lower_ = t;
  }
  if (has_tier() && !is_of_dram() && !is_of_shared() && lower_ == kLowerTiersMax) {
    return Status(StatusCode::kUnsupported, "this domain has no tier of that kind");
  }
  walk_ = d_.walks.Open({.order = WalkOrder::kChildrenFirst,
                         .group_first = filter_.group_first,
                         .group_end = filter_.group_end,
                         .goes_again = !filter_.is_dry_run && !is_of_shared()},
                        WalkUse::kOperation);
  const bool is_all_of_groups = filter_.idle_us_min == 0 && !filter_.is_dry_run;
  if (!is_all_of_groups || (has_tier() && !is_of_shared())) return Status::Ok();
  // With their keys nothing of them can be read any more.
  if (!has_tier() && filter_.is_shared) {
    DestroyGroupKeys(d_, filter_.group_first, filter_.group_end);
  }
  // All of them goes, and of what the shared tier has nobody knows every block: it is forgotten as
  // a whole.
  if (filter_.is_of_all_groups) {
    shared_.ForgetAll();
  } else {
    for (uint32_t g = filter_.group_first; g < filter_.group_end; ++g) shared_.Forget(g);
  }
  return Status::Ok();
}

Result<bool> FilteredEviction::Step(protocol::EvictReply* reply) {
  if (!is_begun_) TERRACE_RETURN_IF_ERROR(Begin());
  if (!d_.walks.IsOpen(walk_)) {
    return Status(StatusCode::kGone, "too many walks are under way; start this one again");
  }
  uint32_t budget = protocol::kBlocksPerTurnMax;
  bool is_done = false;
  while (budget > 0 && !is_done) {
    const BlockId id = d_.walks.Next(walk_, &budget, &is_done);
    if (id == kBlockNone) continue;
    is_of_shared() ? VisitShared(id, reply) : Visit(id, reply);
  }
  const bool has_left_out = is_done && d_.walks.has_left_out(walk_);
  if (is_done) Close();
  if (!has_left_out) return is_done;
  return Status(StatusCode::kBusy,
                "blocks came and went all the while, and some may be left: ask again");
}

void FilteredEviction::Close() {
  if (walk_ != 0) d_.walks.Close(std::exchange(walk_, 0));
}

// ---- one block ----

void FilteredEviction::Visit(BlockId id, protocol::EvictReply* reply) {
  const Block& b = d_.block(id);
  const BlockId parent = d_.index.node(id).parent;
  const bool has_copy = HasCopy(b);
  const bool is_meant = has_copy && IsIdle(id);
  const bool goes = is_meant && (filter_.is_dry_run ? WouldGo(id) : MayGo(id));
  const bool leaves = goes && IsLastCopy(b);
  const bool was_skipped = skipped_.Has(id);
  if (is_meant && !goes && !was_skipped) {
    ++reply->skipped_count;
    skipped_.Add(id);
  }
  if (goes && was_skipped) {
    --reply->skipped_count;
    skipped_.Remove(id);
  }
  if (goes) {
    ++reply->block_count;
    reply->byte_count += BytesOf(b);
  }
  if (!filter_.is_dry_run) {
    if (goes) Drop(id);
  } else if (parent != kBlockNone && !leaves) {
    NoteStays(parent, has_copy && !goes ? Stays::kHere : Stays::kElsewhere);
  }
}

// What is on this host stays.
void FilteredEviction::VisitShared(BlockId id, protocol::EvictReply* reply) {
  if (filter_.idle_us_min == 0 && !filter_.is_dry_run) return;  // forgotten as a whole
  if (d_.block(id).phase != BlockPhase::kSealed || !IsIdle(id)) return;
  if (!filter_.is_dry_run) shared_.Erase(id);
  ++reply->block_count;
  reply->byte_count += d_.group_of(d_.block(id)).block_bytes();
}

void FilteredEviction::Drop(BlockId id) {
  const EraseCauseScope scope(d_, protocol::MissCause::kOperator);
  const bool is_forgotten = filter_.idle_us_min == 0 && !has_tier();
  if (filter_.is_shared && !is_forgotten) shared_.Erase(id);
  if (is_of_dram()) return residency_.lifecycle.DropDram(id);
  TERRACE_CHECK(!has_tier() || lower_ < d_.lower.size(), "Begin refuses a tier that is not there");
  if (has_tier()) return residency_.lifecycle.DropLower(id, lower_, DropReason::kNotWanted);
  ++d_.counters.blocks_evicted;
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

bool FilteredEviction::IsIdle(BlockId id) const {
  const uint64_t now_us = d_.NowUs();
  const uint64_t used_us = d_.index.touched_us(id);
  return used_us + filter_.idle_us_min <= now_us;
}

bool FilteredEviction::HasCopy(const Block& block) const {
  if (!has_tier()) return true;
  if (is_of_dram()) return block.dram.row != kRowNone;
  return block.lower[lower_].row != kRowNone;
}

bool FilteredEviction::IsLastCopy(const Block& block) const {
  if (!has_tier()) return true;
  return !residency_.candidates.HasOtherCopy(block,
                                             is_of_dram() ? block.dram : block.lower[lower_]);
}

// Of whole blocks transfers and checks under way hold nobody up: what they touch goes when they
// end.
bool FilteredEviction::MayGo(BlockId id) const {
  if (is_of_dram()) return residency_.candidates.MayDropDram(id);
  if (has_tier()) return residency_.candidates.MayDropLower(id, lower_);
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && d_.index.pin_count(id) == 0 && !b.is_kept() &&
         d_.index.node(id).child_count == 0;
}

bool FilteredEviction::WouldGo(BlockId id) const {
  const Block& b = d_.block(id);
  const Stays noted = NotedOf(id);
  if (b.phase != BlockPhase::kSealed || b.is_kept() || noted == Stays::kHere) return false;
  const bool is_leaf = noted == Stays::kNothing;
  if (!has_tier()) return is_leaf && d_.index.pin_count(id) == 0;
  if (is_of_dram()) {
    return b.dram.is_readable() && !d_.IsHeld(id) && !b.is_inherited && (is_leaf || !IsLastCopy(b));
  }
  return b.lower[lower_].state == CopyState::kReady && b.job_count == 0 &&
         !d_.IsReadInPlace(id, lower_) &&
         (!IsLastCopy(b) || (is_leaf && d_.index.pin_count(id) == 0));
}

uint64_t FilteredEviction::BytesOf(const Block& block) const {
  const Group& group = d_.group_of(block);
  uint64_t byte_count = 0;
  const auto count = [&](const BlockCopy& copy) {
    if (copy.row == kRowNone) return;
    for (const LocalMember& local : group.locals()) {
      if ((copy.member_mask >> local.member) & 1) byte_count += local.slot_bytes;
    }
  };
  if (!has_tier() || is_of_dram()) count(block.dram);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (!has_tier() || t == lower_) count(block.lower[t]);
  }
  return byte_count;
}

// ---- dry runs ----

FilteredEviction::Stays FilteredEviction::NotedOf(BlockId id) const {
  if (stays_here_.Has(id)) return Stays::kHere;
  return stays_elsewhere_.Has(id) ? Stays::kElsewhere : Stays::kNothing;
}

void FilteredEviction::NoteStays(BlockId parent, Stays stays) {
  (stays == Stays::kHere ? stays_here_ : stays_elsewhere_).Add(parent);
}

}  // namespace terrace
