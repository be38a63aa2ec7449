// Lifecycle: how blocks are born and how they leave. A block is born once, in Birth: Reserved by a
// writer, or Sealed because a copy was found (in the shared tier, in the persistent tier, in a
// predecessor's DRAM). It leaves once, in Leave: whoever follows what can be found (KV events,
// waiters, timers, walks, the keys that were forgotten, invariants' checks) hears of every block
// there. What it held is reclaimed when its last holder has gone.
//
// THREADING: store thread.
// OWNERSHIP: Block's BlockLife, BlockTerms as of its birth, and which blocks are in the index.
// INVARIANT: a block whose phase is Reserved or Sealed is in the index, and no other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/residency/block_hints.h"
#include "daemon/residency/dram_copies.h"
#include "daemon/residency/lower_copies.h"

namespace terrace {

struct NewBlock {
  uint32_t group_index = 0;
  BlockKey key;
  uint32_t position = 0;
  BlockId parent = kBlockNone;
  uint64_t event_hash = 0;
  uint64_t writer_session = 0;
  uint32_t writer_uid = 0;
  uint32_t writer_lease = kHandleNone;  // and its place in there
  uint32_t writer_entry = 0;
  protocol::Hints hints;
};

// A member's bytes of a block that a predecessor left.
struct AdoptedMember {
  uint32_t member = 0;
  SlotRef slot;
};

class Lifecycle {
 public:
  Lifecycle(CacheDomain& domain, Candidates& candidates, SlotRows& rows, DramCopies& dram,
            LowerCopies& lower, BlockHints& hints, const BlockObservers& observers)
      : d_(domain),
        candidates_(candidates),
        rows_(rows),
        dram_(dram),
        lower_(lower),
        hints_(hints),
        observers_(observers) {}

  // ---- births: lifecycle_births.cc ----
  // A Reserved block, without slots yet. kBlockNone when no id is free.
  BlockId Reserve(const NewBlock& block);
  // `child` hangs below `parent` from now on. False if it hangs somewhere already, or may not.
  bool Link(BlockId child, BlockId parent);
  // Reserved → Sealed without any copy: its bytes are to come from the shared tier.
  void Expect(BlockId id);
  // What the record in the shared tier says of an expected block. REQUIRES: its bytes are not
  // readable yet.
  void Describe(BlockId id, CommitId commit_id, uint64_t event_hash);
  // Reserved → Sealed: `member_mask` has bytes. Other members' slots, which are the caller's to
  // free.
  std::vector<SlotRef> Seal(BlockId id, uint64_t member_mask);

  // A copy that outlived the last process; nobody can ask for it before EndRestore. kBlockNone if
  // it is not wanted; the extent stays its tier's then.
  BlockId Restore(uint32_t group_index, uint32_t tier, const BlockRecord& record,
                  const Extent& extent);
  // Every full-attention member has come. If not, forgets the block and frees its extents.
  bool KeepIfWhole(BlockId id, uint32_t tier);
  // The copy is readable, and a candidate like any other. The least worth keeping come first.
  // REQUIRES: whole, and all its children are linked.
  void EndRestore(BlockId id, uint32_t tier);

  // A Sealed block, or the DRAM copy of one that is known: kUnverified until DramCopies'
  // BeginVerify and EndFill. kBlockNone if it is not whole, or not wanted; its slots are the
  // caller's then.
  // REQUIRES: rows of one key and commit, one a member, with a checksum.
  BlockId Adopt(uint32_t group_index, std::span<const AdoptedMember> members);

  // ---- leaving: lifecycle_leaves.cc ----
  // Whatever → Erased, for CacheDomain::erase_cause: the key is free; slots stay while anybody
  // holds them.
  void Erase(BlockId id, StatusCode why);
  // The timer of the block's time to live has gone off: it goes if anybody could find it.
  void Expire(BlockId id);
  // Drops a copy; with the last one the block goes. REQUIRES: MayLeaveDram.
  void DropDram(BlockId id);
  // The same below. REQUIRES: no transfer touches the copy, nobody reads it in place.
  void DropLower(BlockId id, uint32_t tier, DropReason reason);
  // As DropDram for those blocks at the end of `run` that the policy wants gone next, which all
  // have no other copy. How many: 0 if there are not several, or not all may go. REQUIRES: `run` is
  // of one run of the index and ends with the policy's victim.
  uint32_t DropTail(BlockRange run);
  // A holder has let go: what nobody holds and nobody can find is reclaimed.
  void OnLetGo(BlockId id);

 private:
  BlockLife& LifeOf(BlockId id) { return d_.blocks.Change<BlockLife>(id, {}); }
  // The only way in: kBlockNone when no id is free.
  BlockId Birth(const NewBlock& block, BlockPhase phase, const BlockMeta& meta);
  BlockId BirthOfAdopted(uint32_t group_index, const SlotIdentity& row);
  // The only way out: live → Erased, the last one first. The caller takes them off the index.
  void Leave(BlockRange range, protocol::MissCause cause);
  void Reclaim(BlockId id);
  // What a block of a tail held: nobody holds it, and its policy has forgotten it.
  void ReclaimInTail(BlockId id);
  void GiveIdBack(BlockId id);
  bool MayGoWithNext(BlockId id) const;
  bool AreAllRootsIn(BlockId id, uint64_t member_mask) const;
  bool IsChoosyBelow() const;

  CacheDomain& d_;
  Candidates& candidates_;
  SlotRows& rows_;
  DramCopies& dram_;
  LowerCopies& lower_;
  BlockHints& hints_;
  const BlockObservers& observers_;
};

}  // namespace terrace
