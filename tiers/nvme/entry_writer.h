// EntryWriter: how the header table follows what memory decided. One write a slot at a time, and
// the latest decision wins, so that a queue of slots (not of contents) is all there is to wait for.
// What a used slot's entry says is held in memory until it is written, and who wrote the block
// until the catalog knows.
//
// THREADING: the store thread. OWNERSHIP: everything it is given outlives it.
// LIMITS: kEntriesHeldMax entries to be written; who writes blocks asks is_full first.
// INVARIANT: a slot's entry has one write in flight at most, and what is read back from the table
// once it has settled is the slot as memory has it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tiers/nvme/extent_catalog.h"
#include "tiers/nvme/nvme_disks.h"
#include "tiers/nvme/slab_set.h"

namespace terrace {

inline constexpr uint32_t kEntriesHeldMax = 16'384;  // written payload waiting for its entry

// A block that was written to a slot, of whom nobody has been told yet.
struct WrittenBlock {
  CommitId commit_id = 0;
  uint16_t member = 0;
};

class EntryListener {
 public:
  virtual ~EntryListener() = default;
  // The table says of the slot what memory says; nothing newer is on its way there.
  virtual void OnEntrySettled(NvmeSlab& slab, uint32_t slot) = 0;
  // The catalog does, too. `persisted`: a block that is so for the first time.
  virtual void OnEntryCataloged(NvmeSlab& slab, uint32_t slot,
                                const std::optional<WrittenBlock>& persisted) = 0;
};

class EntryWriter {
 public:
  struct Options {
    DomainSecret secret{};
    ExtentCatalog* catalog = nullptr;  // none: an entry alone is enough
  };
  EntryWriter(const Options& options, NvmeDisks& disks, const SlabSet& slabs,
              EntryListener& listener);

  // What the entry of the slot is to say, of the block in it. Written once the slot is kUsed and
  // marked dirty. REQUIRES: somebody has the slot.
  void Hold(NvmeSlab& slab, uint32_t slot, const Extent& extent, const BlockRecord& record);
  // As Hold, of a new block: whose writer is told when it is persisted.
  void HoldNew(NvmeSlab& slab, uint32_t slot, const Extent& extent, const BlockRecord& record);
  // The slot's payload was encrypted as the slab says: its entry says so, too. REQUIRES: is_held.
  void Seal(const NvmeSlab& slab, uint32_t slot);
  // The slot's block is given up.
  void Drop(const NvmeSlab& slab, uint32_t slot) { Drop(PlaceOf(slab.index, slot)); }
  bool is_held(const NvmeSlab& slab, uint32_t slot) const {
    return held_.contains(PlaceOf(slab.index, slot));
  }
  bool is_full() const { return held_with_bytes_ >= kEntriesHeldMax; }

  // The slot's entry is to be written anew, once Write comes to it.
  void MarkDirty(NvmeSlab& slab, uint32_t slot);
  // As many as the disks' queues take.
  void Write();
  // Disks whose tables failed are tried again.
  void Resume() { is_resting_.assign(is_resting_.size(), false); }
  void OnWritten(const NvmeRequest& request, Status status);

  // The catalog has answered, or is told: of an entry that changed without being written.
  void OnCataloged(uint32_t slab, uint32_t slot);
  void TellCatalog(const NvmeSlab& slab, uint32_t slot);

  // At start: later writes have higher epochs than any that was seen.
  void RaiseEpoch(uint64_t seen_epoch);

 private:
  // A used entry that is not yet written, and what is told of it when it is.
  struct HeldEntry {
    std::vector<std::byte> bytes;  // empty: written
    WrittenBlock block;
    bool is_announcing = false;
  };

  void Drop(uint64_t place);
  SlabEntry Describe(const NvmeSlab& slab, const Extent& extent, const BlockRecord& record);
  Status WriteOne(NvmeSlab& slab, uint32_t slot);
  void Settle(NvmeSlab& slab, uint32_t slot);

  const Options options_;
  NvmeDisks& disks_;
  const SlabSet& slabs_;
  EntryListener& listener_;
  std::unordered_map<uint64_t, HeldEntry> held_;  // by PlaceOf
  uint64_t held_with_bytes_ = 0;
  uint64_t epoch_ = 0;  // of the last entry
  // By disk: PlaceOf, each slot with kEntryDirty that is not in flight.
  std::vector<std::deque<uint64_t>> dirty_;
  std::vector<bool> is_resting_;  // by disk: an entry failed
};

}  // namespace terrace
