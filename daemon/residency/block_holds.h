// BlockHolds: who holds blocks: leases (pins, which the index counts a run), jobs, and the fences
// of revoked leases. What is held keeps its slots; what nobody holds any more may be dropped, or is
// reclaimed if nobody can find it.
//
// THREADING: store thread. OWNERSHIP: Block's HoldCounts and NameMark, the index's pins, and what
// CacheDomain counts as fenced.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/residency/candidates.h"
#include "daemon/residency/lifecycle.h"

namespace terrace {

enum class HoldKind : uint8_t { kLease, kJob, kFence };

class BlockHolds {
 public:
  BlockHolds(CacheDomain& domain, Candidates& candidates, Lifecycle& lifecycle)
      : d_(domain), candidates_(candidates), lifecycle_(lifecycle) {}

  void Hold(BlockId id, HoldKind kind);
  // REQUIRES: as many Holds of the kind came before.
  void LetGo(BlockId id, HoldKind kind);
  // Hold() and LetGo() of every one, for a lease.
  void HoldPath(std::span<const BlockId> run);
  void LetGoPath(BlockRange range);
  // HoldPath() of blocks that are ready for all. O(1) a run.
  void HoldReady(BlockRange range);

  // Pins with a name keep it from now on, or no longer.
  void SetNamePinned(BlockId id, bool is_pinned) {
    d_.blocks.Change<NameMark>(id, {}).is_name_pinned = is_pinned;
    candidates_.Refresh(id);
  }

 private:
  HoldCounts& CountsOf(BlockId id) { return d_.blocks.Change<HoldCounts>(id, {}); }
  // The first fence of the block has come, or the last one has fallen.
  void CountFenced(BlockId id, int32_t by);
  template <typename Visit>
  void ForEachPiece(BlockRange range, const Visit& visit);

  CacheDomain& d_;
  Candidates& candidates_;
  Lifecycle& lifecycle_;
};

}  // namespace terrace
