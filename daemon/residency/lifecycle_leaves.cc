// How blocks leave: one by one, or as the end of a path whose only copies are in DRAM, when several
// are wanted gone at once.
#include "daemon/policy/wear_governor.h"
#include "daemon/residency/lifecycle.h"
#include "terrace/check.h"

namespace terrace {

// `cause` is what a miss of their keys is due to from now on; kCold: nobody ever found them.
void Lifecycle::Leave(BlockRange range, protocol::MissCause cause) {
  const uint64_t now_us = d_.NowUs();
  for (BlockId id = range.first + range.block_count; id-- > range.first;) {
    BlockLife& life = LifeOf(id);
    TERRACE_CHECK(life.phase == BlockPhase::kReserved || life.phase == BlockPhase::kSealed,
                  "a block leaves once");
    if (life.phase == BlockPhase::kReserved) {
      --d_.reserved_count.of_owner();
    } else if (cause != protocol::MissCause::kCold) {
      d_.forgotten.Remember(life.group_index, d_.index.key(id), cause, now_us);
      d_.counters.residence_us.Add(now_us - life.created_us);
    }
    d_.walks.OnErase(id);
    if (d_.block(id).is_name_pinned) observers_.pins->OnLeave(id);
    life.phase = BlockPhase::kErased;
    hints_.StopExpiry(id);
    hints_.OnLeave(id);
    candidates_.NoteReadiness(id);  // nobody may read it any more
    d_.changes.Note(id);
  }
  if (observers_.kv_events != nullptr) observers_.kv_events->OnLeave(range);
}

void Lifecycle::Erase(BlockId id, StatusCode why) {
  const Block& b = d_.block(id);
  const BlockId parent = d_.index.node(id).parent;
  if (parent != kBlockNone) {
    dram_.CountChild(parent, b, -1);
    lower_.CountChild(parent, b, -1);
  }
  Leave({id, 1}, d_.erase_cause);
  d_.index.Erase(id);
  dram_.OnErased(id);
  lower_.OnErased(id);
  candidates_.Refresh(id);
  if (parent != kBlockNone) candidates_.Refresh(parent);
  rows_.SetStates(id, SlotState::kFenced, b.writer_session);
  if (b.job_count == 0) lower_.FreeErased(id);
  observers_.waiting->OnBlockLost(id, why);
  if (b.phase == BlockPhase::kErased && !d_.IsHeld(id)) Reclaim(id);
}

void Lifecycle::Expire(BlockId id) {
  if (!hints_.OnExpiryDue(id)) return;
  if (d_.block(id).phase != BlockPhase::kSealed) return;
  ++d_.counters.blocks_expired;
  const EraseCauseScope scope(d_, protocol::MissCause::kExpired);
  Erase(id, StatusCode::kNotFound);
}

void Lifecycle::OnLetGo(BlockId id) {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kErased) return candidates_.Refresh(id);
  if (b.job_count == 0) lower_.FreeErased(id);
  if (d_.IsHeld(id)) return candidates_.Refresh(id);
  if (b.fence_count == 0) Reclaim(id);
}

// Nobody holds it and nobody can find it.
void Lifecycle::Reclaim(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kErased && !d_.IsHeld(id) && b.fence_count == 0,
                "I2: what is held is not freed");
  if (b.dram.row != kRowNone) dram_.Release(id);
  lower_.FreeErased(id);
  d_.admission->OnErase(id);
  GiveIdBack(id);
  d_.index.Recycle(id);
}

// The id may be another block's.
void Lifecycle::GiveIdBack(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.kv_event_places == 0, "what has gone was told to be gone");
  TERRACE_CHECK(b.waiters == kHandleNone, "nobody waits for what has gone");
  d_.group_of(b).roots().Give(b.roots_row);
  LifeOf(id).phase = BlockPhase::kUnused;
}

// ---- copies ----

void Lifecycle::DropDram(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(candidates_.MayLeaveDram(id),
                "I5: a dropped copy is not held and has no child in its tier");
  d_.counters.dram_idle_us.Add(d_.NowUs() - d_.index.touched_us(id));
  if (candidates_.HasOtherCopy(b, b.dram)) {
    dram_.Release(id);
    candidates_.Refresh(id);
    return;
  }
  ++d_.counters.blocks_evicted;
  const bool is_refused = d_.erase_cause == protocol::MissCause::kCapacity && IsChoosyBelow();
  const EraseCauseScope scope(d_, is_refused ? protocol::MissCause::kAdmission : d_.erase_cause);
  Erase(id, StatusCode::kNotFound);
}

// What admission had taken would have a copy below.
bool Lifecycle::IsChoosyBelow() const {
  return !d_.lower.empty() && (d_.limits.admission_policy != "all" ||
                               d_.options.write_bytes_per_day != WearGovernor::kUnlimited);
}

void Lifecycle::DropLower(BlockId id, uint32_t tier, DropReason reason) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.lower[tier].state == CopyState::kReady && b.job_count == 0,
                "I3: no transfer touches a copy that is dropped");
  TERRACE_CHECK(!d_.IsReadInPlace(id, tier), "I2: what is held is not freed");
  lower_.Free(id, tier, reason);
  if (b.phase != BlockPhase::kSealed) return;
  if (b.dram.state != CopyState::kNone || candidates_.HasOtherCopy(b, b.dram)) {
    candidates_.Refresh(id);
    return;
  }
  ++d_.counters.blocks_evicted;
  const bool is_bad = reason == DropReason::kBadBytes;
  const EraseCauseScope scope(d_, is_bad ? protocol::MissCause::kCorrupt : d_.erase_cause);
  Erase(id, StatusCode::kNotFound);
}

// ---- tails ----

// Nothing keeps it but the block behind it in its run.
bool Lifecycle::MayGoWithNext(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kReady &&
         b.dram_children == 1 && b.job_count == 0 && b.fence_count == 0 && !b.is_kept() &&
         !b.is_inherited && b.waiters == kHandleNone;
}

uint32_t Lifecycle::DropTail(BlockRange run) {
  const BlockId last = run.first + run.block_count - 1;
  const Block& tip = d_.block(last);
  if (!d_.lower.empty() || !tip.is_dram_candidate() || tip.waiters != kHandleNone) return 0;
  BlockId first = last;
  while (first > run.first && MayGoWithNext(first - 1)) --first;
  if (first == last) return 0;

  const BlockId parent = d_.index.node(first).parent;
  const uint32_t block_count =
      candidates_.LeaveTail({.first = first, .block_count = last - first + 1});
  // One run was used at one time.
  d_.counters.dram_idle_us.Add(d_.NowUs() - d_.index.touched_us(last), block_count);
  const bool has_left_some = last - block_count + 1 > first;
  first = last - block_count + 1;
  const BlockRange tail{.first = first, .block_count = block_count};
  const BlockId next = has_left_some ? first - 1 : parent;
  // The first of them takes its whole subtree along.
  if (next != kBlockNone) dram_.CountChild(next, d_.block(first), -1);
  Leave(tail, d_.erase_cause);
  for (BlockId id = last + 1; id-- > first;) ReclaimInTail(id);
  d_.counters.blocks_evicted += block_count;
  d_.index.EraseTail(tail, d_.dram_policy->Victim());
  if (next != kBlockNone) candidates_.Refresh(next);
  return block_count;
}

void Lifecycle::ReclaimInTail(BlockId id) {
  dram_.ReleaseInTail(id);
  d_.admission->OnErase(id);
  GiveIdBack(id);
  d_.blocks.Clear(id, {});
}

}  // namespace terrace
