// DramCopies: the copies in DRAM: their slots, how they fill, and what is known of their bytes. A
// copy that fills belongs to one writer, promotion, fetch or comparison at a time.
//
// Nothing here evicts to make room, and nothing erases a block: see evictor.h and lifecycle.h.
//
// THREADING: store thread. OWNERSHIP: Block's DramPart, and the rows of Group::slots().
// INVARIANT: a held block's slots are neither freed nor moved.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/residency/block_observers.h"
#include "daemon/residency/candidates.h"
#include "daemon/residency/slot_rows.h"

namespace terrace {

// Where the bytes of a copy that is to fill come from.
struct FillFrom {
  FillSource source = FillSource::kWriter;
  uint32_t tier = 0;      // of kTier
  bool is_ahead = false;  // nobody has asked for it
};

class DramCopies {
 public:
  DramCopies(CacheDomain& domain, Candidates& candidates, SlotRows& rows,
             const BlockObservers& observers)
      : d_(domain), candidates_(candidates), rows_(rows), observers_(observers) {}

  // Slots for `member_mask`, all or none; kNoSpace with the slot class that found none. The copy is
  // Filling. REQUIRES: no copy is there.
  Status TakeSlots(BlockId id, uint64_t member_mask, const FillFrom& from, uint32_t* short_class);
  // Bytes are to come from the shared tier, which has all checksums as well. REQUIRES: no copy.
  void Expect(BlockId id);
  // The writer is done: Filling → Ready, with the slots of `member_mask` alone. The others' slots,
  // which are the caller's to free.
  std::vector<SlotRef> EndWrite(BlockId id, uint64_t member_mask);
  // The bytes of so many first steps of a promotion are in and verified.
  void StepsIn(BlockId id, uint32_t step_count);
  // Somebody is told of parts of the promotion under way.
  void TellParts(BlockId id);
  // The bytes of the promotion under way were the wrong ones: they are read once more.
  void FillAgain(BlockId id);
  // A promotion's bytes are in and verified, or will not come. If somebody may still read parts of
  // what will not come the block has to be erased instead.
  void EndFill(BlockId id, bool is_good);
  // Whether it was promoted unasked; somebody has asked now.
  bool TakeReadAhead(BlockId id) { return std::exchange(PartOf(id).is_read_ahead, false); }

  // One member's bytes only. REQUIRES: Sealed, Ready, not held.
  void DropMember(BlockId id, uint32_t member);
  // All of them. REQUIRES: there is a copy, and nobody holds it.
  void Release(BlockId id);
  // The same for a block of a tail that left its policy as a whole: only the slots and their row.
  void ReleaseInTail(BlockId id);
  // Ready → Draining and back.
  void SetDraining(BlockId id);
  void ClearDraining(BlockId id);

  // A predecessor's slots become the block's copy: kUnverified until BeginVerify and EndFill.
  // REQUIRES: no copy; as many slots as local members, those without bytes empty.
  void Adopt(BlockId id, uint64_t member_mask, std::span<const SlotRef> slots);
  // Its bytes are being compared now, as after a promotion. REQUIRES: kUnverified.
  void BeginVerify(BlockId id);
  // Nobody whom the predecessor served touches its slots any more.
  void Disinherit(BlockId id);

  // All of the block's roots are in their row; or a digest of them, which is as good until then.
  void RootsKnown(BlockId id);
  void RootsPromised(BlockId id);
  // The daemon has seen that the bytes in DRAM match. Readers who waited for that are told.
  void Verified(BlockId id);
  // They may be other bytes by now.
  void Doubt(BlockId id);

  // `child` hangs below `parent` from now on (by = 1), or no longer (-1).
  void CountChild(BlockId parent, const Block& child, int32_t by);
  // Nothing hangs below the block any more; nobody promotes it, and it drains no longer.
  void OnErased(BlockId id);

 private:
  DramPart& PartOf(BlockId id) { return d_.blocks.Change<DramPart>(id, {}); }
  // Members lose their slots, which `take(SlotRef)` gets one by one.
  template <typename Take>
  void TakeOutSlots(BlockId id, uint64_t member_mask, const Take& take);
  void FreeSlots(BlockId id, uint64_t member_mask);
  // How long the promotion or fetch took that ends now; only what brought good bytes is counted.
  void CountPromotion(BlockId id, bool is_good);
  // Its parent, if it has one, has one child in DRAM more or less.
  void CountWithParent(BlockId id, int32_t by);

  CacheDomain& d_;
  Candidates& candidates_;
  SlotRows& rows_;
  const BlockObservers& observers_;
  // When those that fill from another tier began; looked up only.
  std::unordered_map<BlockId, uint64_t> began_us_;
};

}  // namespace terrace
