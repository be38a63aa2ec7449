#include "daemon/residency/candidates.h"

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kDramBit = 0;
constexpr uint32_t BitOfTier(uint32_t tier) { return 1 + tier; }

}  // namespace

void Candidates::Tell(BlockId id, uint32_t bit, bool may_drop, EvictionPolicy& policy) {
  uint8_t& bits = d_.blocks.Change<CandidateMarks>(id, {}).candidate_bits;
  if (may_drop == ((bits >> bit) & 1)) return;
  bits ^= static_cast<uint8_t>(1u << bit);
  if (may_drop) {
    policy.OnCandidate(id);
  } else {
    policy.OnHeld(id);
  }
}

void Candidates::Refresh(BlockId id) {
  const Block& b = d_.block(id);
  NoteReadiness(id);
  d_.changes.Note(id);
  if (observers_.kv_events != nullptr) observers_.kv_events->OnChange(id);
  Tell(id, kDramBit, b.dram.state == CopyState::kReady && MayDropDram(id), *d_.dram_policy);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    Tell(id, BitOfTier(t), MayDropLower(id, t), *d_.lower[t].policy);
  }
}

void Candidates::EnterDram(BlockId id) {
  TERRACE_CHECK(!d_.block(id).is_dram_candidate(), "a copy that comes is no candidate yet");
  d_.dram_policy->OnInsert(id, d_.TraitsOf(id), d_.NowUs());
}

void Candidates::EnterLower(BlockId id, uint32_t tier, uint64_t used_us) {
  TERRACE_CHECK(!d_.block(id).is_lower_candidate(tier), "a copy that comes is no candidate yet");
  d_.lower[tier].policy->OnInsert(id, d_.TraitsOf(id), used_us);
}

void Candidates::LeaveDram(BlockId id) {
  Tell(id, kDramBit, false, *d_.dram_policy);
  d_.dram_policy->OnErase(id);
}

void Candidates::LeaveLower(BlockId id, uint32_t tier) {
  Tell(id, BitOfTier(tier), false, *d_.lower[tier].policy);
  d_.lower[tier].policy->OnErase(id);
}

uint32_t Candidates::LeaveTail(BlockRange run) {
  const uint32_t block_count = d_.dram_policy->EraseVictims(run);
  TERRACE_CHECK(block_count > 0 && block_count <= run.block_count, "a victim is among its own run");
  if (block_count < run.block_count) {
    // The policy has made a candidate of what it left.
    const BlockId next = run.first + (run.block_count - block_count) - 1;
    d_.blocks.Change<CandidateMarks>(next, {}).candidate_bits |= 1u << kDramBit;
  }
  return block_count;
}

bool Candidates::HasOtherCopy(const Block& block, const BlockCopy& copy) const {
  if (&copy != &block.dram && block.dram.is_readable()) return true;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (&copy != &block.lower[t] && block.lower[t].is_readable()) return true;
  }
  return false;
}

bool Candidates::MayLeaveDram(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && b.dram.is_readable() && !d_.IsHeld(id) &&
         !b.is_inherited && b.dram_children == 0 &&
         (d_.index.node(id).child_count == 0 || HasOtherCopy(b, b.dram));
}

bool Candidates::MayLeaveLower(BlockId id, uint32_t tier) const {
  const Block& b = d_.block(id);
  if (b.phase != BlockPhase::kSealed || b.lower[tier].state != CopyState::kReady ||
      b.job_count > 0 || b.lower_children[tier] > 0 || d_.IsReadInPlace(id, tier)) {
    return false;
  }
  return HasOtherCopy(b, b.lower[tier]) ||
         (d_.index.node(id).child_count == 0 && d_.index.pin_count(id) == 0);
}

bool Candidates::IsExpired(BlockId id) const {
  const uint64_t expires_us = d_.block(id).expires_us;
  return expires_us != kNever && expires_us <= d_.NowUs();
}

uint8_t Candidates::ReadinessOfReadable(const Block& block) const {
  const bool is_ready = block.has_roots && block.expires_us == kNever && !block.is_read_ahead &&
                        block.dram.member_mask == d_.group_of(block).local_mask();
  if (!is_ready) return kReadyForNone;
  return block.is_verified ? kReadyForAll : d_.writer_classes.ClassOf(block.writer_uid);
}

}  // namespace terrace
