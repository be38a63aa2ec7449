// Evictor: makes room. It asks the tier's policy who goes first, and takes only what may go. A
// block that is worth writing below is written first if somebody can start that now; the engine
// never waits for it.
//
// THREADING: store thread. LIMITS: kEvictionsPerBlockMax evictions for one block's slots.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/residency/residency.h"
#include "daemon/residency/subtree_walk.h"

namespace terrace {

// Starts writes to lower tiers; the Mover.
class LowerWriter {
 public:
  virtual ~LowerWriter() = default;
  // The DRAM copy is wanted gone. True if it will be dropped once written below (it is Draining
  // now); false if there is nothing to write, or no way to begin now: drop it.
  virtual bool TryDemote(BlockId id) = 0;
  // `tier` has no place for a local member of the block. True if places of another kind are being
  // given up for it.
  virtual bool FreeTogether(BlockId id, uint32_t tier, uint32_t local_index) = 0;
};

class Evictor {
 public:
  static constexpr uint32_t kEvictionsPerBlockMax = 64;
  static constexpr uint32_t kDemotionsPerBlockMax = 4;
  static constexpr uint32_t kEvictionsAtOnceMax = 64;
  static constexpr uint32_t kForeignEvictionsMax = 4;  // below, for one block
  static constexpr uint32_t kCandidatesPassedMax = 64;
  static constexpr uint32_t kEvictionsPerMoveMax = 8;
  static constexpr uint32_t kCompactionBlocksMax = 256;
  static constexpr uint64_t kThinShareDivisor = 2;
  static constexpr uint32_t kTrimBlocksMax = 64;    // trimmed at once
  static constexpr uint32_t kTrimWindowMax = 1024;  // wider windows are not trimmed

  Evictor(CacheDomain& domain, Residency& residency) : d_(domain), residency_(residency) {}
  void SetWriter(LowerWriter* writer) { writer_ = writer; }

  // Residency's, with room made. kNoSpace when nothing more may go.
  BlockId Insert(const NewBlock& block);
  // So many blocks like the next one are about to ask for slots: what makes room for them may go at
  // once, up to kEvictionsAtOnceMax. Their requests count it down.
  void Expect(uint32_t block_count) { expected_count_ = block_count; }
  // kMayPassBy: the policy was told of it; if it ranks below all that is there, kNotFound, and
  // nothing goes for it.
  enum class Newcomer : uint8_t { kComes, kMayPassBy };
  Status TakeSlots(BlockId id, uint64_t member_mask, const FillFrom& from = {},
                   Newcomer newcomer = Newcomer::kComes);
  Status TakeExtents(BlockId id, uint32_t tier);
  // A place for bytes of the block that lie elsewhere in the tier and cannot stay there: the least
  // wanted makes room. kNotFound: that is the block itself. kBusy: room is being made.
  Result<Extent> TakeExtentToMove(BlockId id, uint32_t tier, const LocalMember& local);

  // Drops every copy of a block, as an operator asks. False if it is held, pinned or has a child.
  bool Evict(BlockId id);
  bool MayEvict(BlockId id) const;
  // Empties DRAM of a block and of what depends on it there, from where `walk` stands on.
  enum class Pins : uint8_t { kHold, kGive };
  WalkEnd DropDramSubtree(Pins pins, SubtreeWalk* walk, uint32_t* budget);
  // The same for a lower tier.
  WalkEnd DropLowerSubtree(uint32_t tier, Pins pins, SubtreeWalk* walk, uint32_t* budget);
  SubtreeWalk WalkFrom(BlockId id) const;
  // The Sealed block in a slot; kBlockNone if nobody can find it.
  BlockId BlockIn(const SlotRef& slot) const;

 private:
  // Frees slots of a windowed member that lie further behind `tip` than its window. False if
  // `class_index` is no such member's, or nothing was to be had.
  bool TrimWindow(BlockId tip, uint32_t class_index);
  bool EvictSomeFromDram(uint32_t at_once_max, uint32_t* demotions_left);
  Status TakeExtentsHeld(BlockId id, uint32_t tier);
  // The tier's victim if places like its own are what `local` needs, else one of the next ones of
  // which that is true; kBlockNone if none of some is.
  BlockId VictimOfShape(uint32_t tier, const LocalMember& local);
  bool HasShape(BlockId id, const LocalMember& local) const;
  // Empties the emptiest run of extents that `class_index` could use, if no more than one part in
  // `share_divisor` of it is in use. False if that could not be done, or not wholly.
  bool Compact(uint32_t class_index, uint64_t share_divisor);
  uint64_t BytesOf(const SlotRef& slot) const;

  CacheDomain& d_;
  Residency& residency_;
  LowerWriter* writer_ = nullptr;
  uint32_t expected_count_ = 1;
  std::vector<SlotRef> scratch_slots_;
  mutable uint32_t last_group_index_ = 0;  // of BlockIn
};

}  // namespace terrace
