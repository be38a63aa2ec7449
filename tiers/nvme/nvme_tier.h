// NvmeTier: slabs on one or several disks, as a Tier. It decides which slot a block takes, keeps
// the header table in step, notices disks that fail, and switches itself off and on again. It never
// reads what it wrote to know what it holds: memory has a few bytes a slot, the table the rest.
//
// Slabs hold slots of one shape (docs/DISK_FORMAT.md). A shape without a free slot gets a new slab
// while the cap allows, else kNoSpace; a slab without any used slot may take another shape.
//
// THREADING: as Tier. Requests go to the disks' queues; whoever ends the turn calls Disk::Flush.
// OWNERSHIP: disks, catalog and listener outlive the tier.
// LIMITS: capacity_bytes counts whole slab files, also those left alone; more in
// nvme_tier_state.h.
// INVARIANT: a slot is handed out again only after its entry says that it is free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "tiers/disk/disk.h"
#include "tiers/nvme/header_table.h"
#include "tiers/tier.h"

namespace terrace {

// Told which slots' entries changed; whoever keeps a catalog reads the entries back from the table.
class ExtentCatalog {
 public:
  virtual ~ExtentCatalog() = default;
  // The entry of the slot has been written. NvmeTier::OnCataloged follows once the catalog says
  // what the entry has said since the last of these calls; several may be answered at once, and an
  // answer that another call has overtaken is not given. A free entry needs no record; a
  // quarantined one does, lest the slot be taken for free.
  virtual void OnEntryWritten(uint32_t slab, uint32_t slot) = 0;
};

// What memory holds of a slot, for whoever compares it with table and catalog.
struct SlabSlotView {
  SlabEntryState state = SlabEntryState::kFree;
  uint32_t owner = kOwnerNone;  // of a used slot
  uint32_t generation = 0;
  bool is_settled = false;  // table and catalog have been told; neither changes by itself

  friend bool operator==(const SlabSlotView&, const SlabSlotView&) = default;
};
struct SlabView {
  uint32_t index = 0;
  uint32_t disk = 0;  // of Options::disks
  SlabGeometry geometry;
  SlabUuid uuid;
};

// A RestoreSink's answer: nobody knows yet whose it is. The entry stays, the slot is out of use.
inline constexpr uint32_t kOwnerUnknown = 0xFFFFFFFE;

class NvmeTier final : public Tier, public DiskListener {
 public:
  struct Options {
    uint32_t domain_index = 0;
    std::string domain_name;
    DomainSecret secret{};
    std::vector<Disk*> disks;  // ≥ 1; slabs are spread evenly
    uint64_t capacity_bytes = 0;
    uint64_t slab_bytes = 1 * kGiB;
    ExtentCatalog* catalog = nullptr;  // none: an entry alone makes a block persisted
    std::function<uint64_t()> now_us;
    std::function<uint64_t()> random;  // of slab uuids
    uint32_t failures_max = 8;         // in a row, then the disk is off
    uint64_t stuck_us = 30'000'000;    // a request this old switches its disk off
    uint64_t probe_interval_us = 5'000'000;
    uint64_t sync_interval_us = 1'000'000;
  };
  explicit NvmeTier(Options options);
  ~NvmeTier() override;
  // Before the first transfer.
  void SetListener(TierListener* listener);

  // ---- start: blocking, in this order ----
  // Opens the slabs there are. A slab that is not this domain's or not whole is left alone and
  // noted.
  Status OpenSlabs(std::vector<std::string>* notes);
  // Who owns a restored extent from now on. kOwnerNone: nobody wants it; its slot is freed.
  using RestoreSink = std::function<uint32_t(const BlockRecord& record, const Extent& extent)>;
  // Told of keys that the sink will probably be asked about soon, to have memory at hand.
  using RestoreAhead = std::function<void(const BlockKey& key)>;
  // Reads every table. Entries that are not whole are quarantined slots, counted.
  Status Scan(const RestoreSink& sink, const RestoreAhead& ahead = {});
  // Instead of Scan: one entry as the catalog has it (EncodeEntry's bytes). Of two for one block
  // the sink takes one. kNotFound: no such slot. kCorrupt: that is no entry of the slot, nor what
  // its table holds; nothing has changed.
  Status RestoreEntry(uint32_t slab, uint32_t slot, std::span<const std::byte> entry,
                      const RestoreSink& sink);
  // Slots nobody restored are free from now on.
  void FinishRestore();
  struct RestoreCounts {
    uint64_t slabs = 0, entries_used = 0, entries_kept = 0, entries_corrupt = 0;
    uint64_t entries_left = 0;    // whose owners nobody knows
    uint64_t entries_unread = 0;  // of the corrupt: their sectors could not be read
  };
  RestoreCounts restore_counts() const;

  // ---- Tier ----
  TierKind kind() const override { return TierKind::kNvme; }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  void Quarantine(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  bool reads_ranges() const override { return true; }
  Status ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                   std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  void Amend(const Extent& extent, const BlockRecord& record) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  bool is_persistent() const override { return true; }
  ErasureProgress erasures() const override;
  void AppendOwnersToDrop(uint64_t length_bytes, uint32_t part_count,
                          std::vector<uint32_t>* owners) override;
  void Tick() override;
  TierStats stats() const override;

  // ---- an online check ----
  // The first slab in use whose number is at least this.
  std::optional<SlabView> NextSlab(uint32_t index_min) const;
  // Of slots [first, first + views.size()). False: the slab is not in use, or has not so many.
  bool LookAtSlots(uint32_t slab, uint32_t first, std::span<SlabSlotView> views) const;
  // Writes to a quarantined slot and reads that back: it is free again if the drive keeps it.
  // `done` is called once, perhaps from inside this call: whether it is. REQUIRES: its entry names
  // nothing.
  void TryQuarantined(uint32_t slab, uint32_t slot, std::function<void(bool is_free)> done);
  // The entry of a slot that nobody has is written anew, as free. What a quarantined slot holds is
  // of no use then. Does nothing to a slot that somebody has.
  void RewriteAsFree(uint32_t slab, uint32_t slot);

  // Nothing is on its way: no transfer, no entry to table or catalog, no erasure. What a catalog is
  // marked complete for.
  bool is_quiet() const;

  // From the catalog's keeper, on the store thread.
  void OnCataloged(uint32_t slab, uint32_t slot);
  // Reads one entry back, for the catalog's thread: any thread, blocking. kNotFound: never written.
  Status ReadEntryNow(uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) const;

  // DiskListener
  void OnDiskDone(uint64_t tag, Status status) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
