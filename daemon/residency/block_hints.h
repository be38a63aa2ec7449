// BlockHints: what requests and operators say of blocks, and how they use them: priority, pins,
// times to live, costs, touches. Policies, rows and records hear of what they go by.
//
// A block has one timer, of whichever comes first: its end, or its priority's.
//
// THREADING: store thread. OWNERSHIP: Block's BlockExpiry, BlockUse, and BlockTerms from a block's
// birth on.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "daemon/residency/candidates.h"
#include "daemon/residency/record_updates.h"
#include "daemon/residency/slot_rows.h"

namespace terrace {

class BlockHints {
 public:
  BlockHints(CacheDomain& domain, Candidates& candidates, SlotRows& rows, RecordUpdates& updates)
      : d_(domain), candidates_(candidates), rows_(rows), updates_(updates) {}

  // What a request says about its blocks: priority, time to live, pin, no-store, recompute cost.
  void Apply(BlockId id, const protocol::Hints& hints);
  void SetPinned(BlockId id) { ChangePin(id, true); }
  void ClearPinned(BlockId id) { ChangePin(id, false); }
  // A block of before may be born pinned; one that nobody finds any more is pinned no longer.
  void OnBirth(BlockId id);
  void OnLeave(BlockId id);

  // The blocks of a run, or of a part of one, were asked for, in order.
  struct Part {
    BlockId behind = kBlockNone;  // the last block of the part before
    bool goes_on = false;         // there may be another part
  };
  void Touch(std::span<const BlockId> run, const protocol::Hints& hints) { Touch(run, hints, {}); }
  void Touch(std::span<const BlockId> run, const protocol::Hints& hints, const Part& part);
  // Tells the policies when the engine expects the blocks to be asked for, if it says.
  void Expect(std::span<const BlockId> run, const protocol::Hints& hints);
  void CountHit(BlockId id) {
    ++d_.blocks.Change<BlockUse>(id, {}).hit_count;
    if (!stays_.empty()) RenewExpiry(id);
  }

  // It ends at `expires_us`, as its record says; its timer begins with StartExpiry.
  void RestoreExpiry(BlockId id, uint64_t expires_us);
  // Its timer, if it has an end and no timer yet.
  void StartExpiry(BlockId id) {
    const Block& b = d_.block(id);
    if (DueUs(id) != kNever && b.expiry == kHandleNone) AddExpiry(id);
  }
  void StopExpiry(BlockId id) {
    if (d_.block(id).expiry != kHandleNone) RemoveExpiry(id);
  }
  // Its timer has gone off. False: its priority has ended, the block has not.
  bool OnExpiryDue(BlockId id);

 private:
  // Of a block of which a request has said more than an end.
  struct Stay {
    uint64_t priority_ends_us = kNever;
    uint32_t renewed_s = 0;  // by each hit; 0: not
  };
  BlockMeta& MetaOf(BlockId id) { return d_.blocks.Change<BlockTerms>(id, {}); }
  BlockExpiry& ExpiryOf(BlockId id) { return d_.blocks.Change<BlockExpiry>(id, {}); }
  // Of its timer.
  uint64_t DueUs(BlockId id) const;
  void ApplyTtl(BlockId id, const protocol::Hints& hints);
  void RenewExpiry(BlockId id);
  void AddExpiry(BlockId id);
  void RemoveExpiry(BlockId id);
  void ChangePin(BlockId id, bool is_pinned);
  void CountPinned(BlockId id, int32_t by);
  void ApplyPriority(BlockId id, uint8_t priority);
  // `tell(policy, resident)` for each tier that has some of `run`.
  template <typename Tell>
  void ForEachPolicy(std::span<const BlockId> run, const Tell& tell);

  CacheDomain& d_;
  Candidates& candidates_;
  SlotRows& rows_;
  RecordUpdates& updates_;
  std::unordered_map<BlockId, Stay> stays_;  // few have one
};

}  // namespace terrace
