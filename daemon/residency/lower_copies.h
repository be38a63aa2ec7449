// LowerCopies: the copies in the tiers below DRAM: their extents, how they are written, and what is
// counted of them.
//
// Nothing here evicts to make room, and nothing erases a block: see evictor.h and lifecycle.h.
//
// THREADING: store thread.
// OWNERSHIP: Block's LowerPart, the rows of Group::extents() and the counts of CacheDomain::lower.
// INVARIANT: an extent that is read, written or read in place is not freed.
#pragma once

#include <cstdint>

#include "daemon/residency/block_observers.h"
#include "daemon/residency/candidates.h"
#include "daemon/residency/record_updates.h"

namespace terrace {

// kBadBytes: the place is not used again.
enum class DropReason : uint8_t { kNotWanted, kBadBytes };

class LowerCopies {
 public:
  LowerCopies(CacheDomain& domain, Candidates& candidates, RecordUpdates& updates,
              const BlockObservers& observers)
      : d_(domain), candidates_(candidates), updates_(updates), observers_(observers) {}

  // Places for all members that DRAM has; the copy is Filling. On failure *short_local is the local
  // member that found no place, and the status the tier's.
  Status TakeExtents(BlockId id, uint32_t tier, uint32_t* short_local);
  void EndFill(BlockId id, uint32_t tier, bool is_good);
  // One member's bytes outlive the process now. What is of another commit, or has no copy in the
  // persistent tier any more, is passed over.
  void EndPersist(BlockId id, CommitId commit_id, uint32_t member);
  bool IsPersisted(BlockId id) const;

  // A copy that outlived the last process, member by member; nobody can ask for it before
  // EndRestore. REQUIRES: no copy there.
  void BeginRestore(BlockId id, uint32_t tier);
  // False if the member has come already, or the copy was not begun.
  bool RestoreMember(BlockId id, uint32_t tier, const LocalMember& local, const Extent& extent);
  void EndRestore(BlockId id, uint32_t tier);
  // Frees what has come.
  void GiveUpRestore(BlockId id, uint32_t tier);

  // A local member's bytes are in `to`, too: they are read there from now on, and the extent where
  // they were is freed. REQUIRES: a copy that is Ready, and that nobody transfers or reads in
  // place.
  void Move(BlockId id, uint32_t tier, uint32_t local_index, const Extent& to);

  // REQUIRES: there is a copy, and nobody transfers it or reads it in place.
  void Free(BlockId id, uint32_t tier, DropReason reason);
  // What nobody can find has no business below, whoever still reads its slots; but who reads it on
  // the device reads its extents.
  void FreeErased(BlockId id);
  // A job still holds what was erased: the persistent tier has not heard of it.
  void OnErased(BlockId id);
  // A copy that is still read in place was found wrong; the block is erased next.
  void FoundBad(BlockId id) { PartOf(id).is_bad_below = true; }

  // `child` hangs below `parent` from now on (by = 1), or no longer (-1).
  void CountChild(BlockId parent, const Block& child, int32_t by);

 private:
  LowerPart& PartOf(BlockId id) { return d_.blocks.Change<LowerPart>(id, {}); }
  void CountWithParent(BlockId id, uint32_t tier, int32_t by);

  CacheDomain& d_;
  Candidates& candidates_;
  RecordUpdates& updates_;
  const BlockObservers& observers_;
};

}  // namespace terrace
