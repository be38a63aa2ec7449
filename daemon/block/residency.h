// Residency: every change of what a block is and where its copies are. All other rooms ask here, so
// that phases, counts of children and candidates of the eviction policies cannot disagree.
//
// Nothing here evicts to make room: what does not fit is kNoSpace, see evictor.h.
//
// THREADING: store thread.
// INVARIANT: a held block's slots are neither freed nor moved; a block is a candidate in a tier
// exactly if MayDrop… says so.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/block/cache_domain.h"
#include "daemon/block/kv_event_source.h"

namespace terrace {

// What becomes of blocks, for those who wait for them. May let go of leases and hold others, but
// must not erase blocks.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  // Sealed with a readable DRAM copy: just now.
  virtual void OnBlockReady(BlockId id) = 0;
  // More parts of a promotion under way are in and verified: Block::steps_in.
  virtual void OnStepsIn(BlockId id) = 0;
  // A promotion failed, or nobody can find the block any more.
  virtual void OnBlockLost(BlockId id, StatusCode why) = 0;
  // The copy in the persistent tier is complete, and outlives the process.
  virtual void OnBlockPersisted(BlockId id) = 0;
};

struct NewBlock {
  uint32_t group_index = 0;
  BlockKey key;
  uint32_t position = 0;
  BlockId parent = kBlockNone;
  uint64_t event_hash = 0;
  uint64_t writer_session = 0;
  uint32_t writer_uid = 0;
  protocol::Hints hints;
};

// A member's bytes of a block that a predecessor left.
struct AdoptedMember {
  uint32_t member = 0;
  SlotRef slot;
};

enum class HoldKind : uint8_t { kLease, kJob, kFence };

class Residency {
 public:
  explicit Residency(CacheDomain& domain) : d_(domain) {}
  void SetObserver(BlockObserver* observer) { observer_ = observer; }
  // Without: routers are told nothing.
  void SetKvEvents(KvEventSource* kv_events) { kv_events_ = kv_events; }

  // ---- phases ----
  // A Reserved block, without slots yet. kBlockNone when no id is free.
  BlockId Insert(const NewBlock& block);
  bool Link(BlockId child, BlockId parent);
  // Reserved → Sealed without any copy: its bytes are to come from the shared tier.
  void Expect(BlockId id);
  // Reserved → Sealed: `member_mask` has bytes, other members' slots are freed.
  void Seal(BlockId id, uint64_t member_mask);
  // Whatever → Erased: the key is free; slots stay while anybody holds them.
  void Erase(BlockId id, StatusCode why);

  // ---- the DRAM copy ----
  // Slots for `member_mask`, all or none; kNoSpace with the slot class that found none. The copy is
  // Filling.
  Status TakeSlots(BlockId id, uint64_t member_mask, uint32_t* short_class);
  // The bytes of so many first steps of a promotion are in and verified.
  void StepsIn(BlockId id, uint32_t step_count);
  // A promotion's bytes are in and verified, or will not come. If somebody may still read parts of
  // what will not come the block has to be erased instead.
  void EndFill(BlockId id, bool is_good);
  // REQUIRES: not held, another copy exists or the block is dropped for good.
  void DropDram(BlockId id);
  // The same for those blocks at the end of `run` that the policy wants gone next, which all have
  // no other copy. How many: 0 if there are not several, or not all may go. REQUIRES: `run` is of
  // one run of the index and ends with the policy's victim.
  uint32_t DropTail(BlockRange run);
  // One member's bytes only. REQUIRES: Sealed, Ready, not held.
  void DropMember(BlockId id, uint32_t member);
  // Ready → Draining and back.
  void SetDraining(BlockId id);
  void ClearDraining(BlockId id);

  // ---- copies in lower tiers ----
  // On failure *short_local is the local member that found no place.
  Status TakeExtents(BlockId id, uint32_t tier, uint32_t* short_local);
  void EndLowerFill(BlockId id, uint32_t tier, bool is_good);
  // kBadBytes: the place is not used again.
  enum class DropReason : uint8_t { kNotWanted, kBadBytes };
  void DropLower(BlockId id, uint32_t tier, DropReason reason);
  // One member's bytes outlive the process now. What is of another commit, or has no copy in the
  // persistent tier any more, is passed over.
  void EndPersist(BlockId id, CommitId commit_id, uint32_t member);
  bool IsPersisted(BlockId id) const;
  // Its records in the persistent tier, if it has any, are to be written again.
  void Amend(BlockId id);

  // ---- copies that outlived the last process; nobody can ask for them before EndRestore ----
  // kBlockNone if the copy is not wanted; the extent stays its tier's then.
  BlockId Restore(uint32_t group_index, uint32_t tier, const BlockRecord& record,
                  const Extent& extent);
  // Every full-attention member has come. If not, forgets the block and frees its extents.
  bool KeepIfWhole(BlockId id, uint32_t tier);
  // The copy is readable, and a candidate like any other. The least worth keeping come first.
  // REQUIRES: whole, and all its children are linked.
  void EndRestore(BlockId id, uint32_t tier);

  // ---- DRAM copies that a predecessor left ----
  // A Sealed block, or the DRAM copy of one that is known: kUnverified until BeginVerify and
  // EndFill. kBlockNone if it is not whole, or not wanted; its slots are the caller's then.
  // REQUIRES: rows of one key and commit, one a member, with a checksum.
  BlockId Adopt(uint32_t group_index, std::span<const AdoptedMember> members);
  // Its bytes are being compared now, as after a promotion. REQUIRES: kUnverified.
  void BeginVerify(BlockId id);
  // Nobody whom the predecessor served touches its slots any more.
  void Disinherit(BlockId id);
  // A slot of no block: fenced until FreeInherited.
  void Inherit(const SlotRef& slot);
  void FreeInherited();

  // ---- holding ----
  void Hold(BlockId id, HoldKind kind);
  void LetGo(BlockId id, HoldKind kind);
  // Hold() and LetGo() of every one, for a lease.
  void HoldPath(std::span<const BlockId> run);
  void LetGoPath(BlockRange range);
  // HoldPath() of blocks that are ready for all. O(1) a run.
  void HoldReady(BlockRange range);

  // ---- worth ----
  // The daemon has seen that the bytes in DRAM match. Readers who waited for that are told.
  void Verified(BlockId id);
  // They may be other bytes by now.
  void Doubt(BlockId id);
  void Touch(std::span<const BlockId> run, const protocol::Hints& hints);
  // Tells the policies when the engine expects the blocks to be asked for, if it says.
  void Expect(std::span<const BlockId> run, const protocol::Hints& hints);
  // What a request says about its blocks: priority, time to live, pin, no-store, recompute cost.
  void ApplyHints(BlockId id, const protocol::Hints& hints);
  void SetPinned(BlockId id);
  void ClearPinned(BlockId id);

  // ---- questions ----
  // I5 and I2: nobody holds it, no child is resident there, and the last copy is a leaf's.
  bool MayDropDram(BlockId id) const;
  // The same for memory that has to go back: a pin holds no borrowed memory.
  bool MayLeaveDram(BlockId id) const;
  bool MayDropLower(BlockId id, uint32_t tier) const;
  bool HasOtherCopy(const Block& block, const BlockCopy& copy) const;
  bool IsExpired(BlockId id) const;
  // Who may read it from DRAM at once, and for good, every local member's bytes: nobody, all, or
  // one class of CacheDomain::writer_classes.
  uint8_t ReadinessOf(BlockId id) const;

 private:
  // `tell(policy, resident)` for each tier that has some of `run`.
  template <typename Tell>
  void ForEachPolicy(std::span<const BlockId> run, const Tell& tell);
  BlockId InsertAdopted(uint32_t group_index, const SlotIdentity& row);
  // Live → Erased, the last one first, for one block and for many: the only way out. Whoever
  // follows what is resident hears of every block here; the caller takes them off the index.
  void Leave(BlockRange range);
  void FreeSlots(BlockId id, uint64_t member_mask);
  void ReleaseDramRow(BlockId id);
  bool MayGoWithNext(BlockId id) const;
  void FreeExtents(BlockId id, uint32_t tier, DropReason reason = DropReason::kNotWanted);
  void FreeErasedExtents(BlockId id);
  void WasLetGo(BlockId id);
  template <typename Visit>
  void ForEachPiece(BlockRange range, const Visit& visit);
  // All of the block's roots are in their row.
  void RootsKnown(BlockId id);
  void NoteReadiness(BlockId id);
  void Reclaim(BlockId id);
  void Refresh(BlockId id);
  void AddExpiry(BlockId id);
  bool IsChoosyBelow() const;
  void CountChild(BlockId parent, const Block& child, int32_t by);
  void SetRowStates(BlockId id, SlotState state, uint64_t holder);
  // What the rows of its slots say of it, but for the member.
  SlotIdentity DescribeForRows(BlockId id) const;
  // It has changed.
  void AmendRows(BlockId id);

  CacheDomain& d_;
  BlockObserver* observer_ = nullptr;
  KvEventSource* kv_events_ = nullptr;
};

}  // namespace terrace
