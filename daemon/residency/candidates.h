// Candidates: which copies may be dropped, and that the eviction policies know it. Whoever changes
// something that a copy's right to stay depends on (a hold, a child, a pin, a state) calls Refresh
// for the block, and nothing else has to be kept in step: policies, readiness, KV events.
//
// THREADING: store thread. OWNERSHIP: Block's CandidateMarks and CacheDomain::readiness.
// INVARIANT: after Refresh a block is a candidate in a tier exactly if MayDrop… says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/block/cache_domain.h"
#include "daemon/residency/block_observers.h"

namespace terrace {

class Candidates {
 public:
  Candidates(CacheDomain& domain, const BlockObservers& observers)
      : d_(domain), observers_(observers) {}

  // Something about the block has changed: policies and routers hear of what follows from it.
  void Refresh(BlockId id);
  // The same, if only who may read it from DRAM can have changed.
  void NoteReadiness(BlockId id) { d_.readiness.of_owner()[id] = ReadinessOf(id); }

  // As RadixIndex::TakeAhead(), of what is kept here by id.
  std::span<std::byte> TakeAhead() {
    return d_.readiness.of_owner().TakeAhead(d_.index.id_count() + kIdsAhead);
  }

  // A copy is there now, or on its way; of a candidate it is not one before Refresh. What was used
  // last at `used_us` is that old to the policy.
  void EnterDram(BlockId id);
  void EnterLower(BlockId id, uint32_t tier, uint64_t used_us);
  // A copy goes, whether it was a candidate or not.
  void LeaveDram(BlockId id);
  void LeaveLower(BlockId id, uint32_t tier);
  // The end of `run` that the policy wants gone from DRAM next has left it: so many blocks.
  // REQUIRES: the last block is the policy's victim, and each of the others one as soon as those
  // behind it have gone.
  uint32_t LeaveTail(BlockRange run);

  // I5 and I2: nobody holds it, no child is resident there, and the last copy is a leaf's.
  bool MayDropDram(BlockId id) const { return !d_.block(id).is_kept() && MayLeaveDram(id); }
  // The same for memory that has to go back: a pin holds no borrowed memory.
  bool MayLeaveDram(BlockId id) const;
  bool MayDropLower(BlockId id, uint32_t tier) const {
    return MayLeaveLower(id, tier) && !IsKeptBelow(id, tier);
  }
  bool MayLeaveLower(BlockId id, uint32_t tier) const;
  // A readable one, beside `copy` of the same block.
  bool HasOtherCopy(const Block& block, const BlockCopy& copy) const;
  bool IsExpired(BlockId id) const;
  // Who may read it from DRAM at once, and for good, every local member's bytes: nobody, all, or
  // one class of CacheDomain::writer_classes.
  uint8_t ReadinessOf(BlockId id) const {
    const Block& b = d_.block(id);
    const bool is_there = b.phase == BlockPhase::kSealed && b.dram.is_readable();
    return is_there ? ReadinessOfReadable(b) : kReadyForNone;
  }

 private:
  // On a device a pin keeps the block, not this copy of it.
  bool IsKeptBelow(BlockId id, uint32_t tier) const {
    const Block& b = d_.block(id);
    return b.is_kept() && (tier != d_.device_tier || !HasOtherCopy(b, b.lower[tier]));
  }
  uint8_t ReadinessOfReadable(const Block& block) const;
  // `is_candidate` is the block's bit of the tier: it becomes `may_drop`, and the policy hears.
  void Tell(BlockId id, uint32_t bit, bool may_drop, EvictionPolicy& policy);

  CacheDomain& d_;
  const BlockObservers& observers_;
};

}  // namespace terrace
