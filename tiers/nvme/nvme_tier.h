// NvmeTier: slabs on one or several disks, as a Tier. It decides which slot a block takes, keeps
// the header table in step, notices disks that fail, and switches itself off and on again. It never
// reads what it wrote to know what it holds: memory has a few bytes a slot, the table the rest.
//
// Slabs hold slots of one shape (docs/DISK_FORMAT.md). A shape without a free slot gets a new slab
// while the domain's share allows, else kNoSpace; a slab without any used slot may take another
// shape.
//
// THREADING: as Tier. Requests go to the disks' queues; whoever ends the turn calls Disk::Flush.
// OWNERSHIP: disks, catalog and listener outlive the tier.
// LIMITS: its share of the tier counts whole slab files, also those left alone; more where they are
// kept.
// INVARIANT: a slot is handed out again only after its entry says that it is free.
//
// It is composed of, from the bottom up:
//   SlabSlots, UnsyncedEntries, NvmeSlab, SlabSet   what memory holds of slots and slabs
//   NvmeDisks                                       requests in flight, health of disks
//   ShapeClasses                                    which slab gives the next slot of a shape
//   EntryWriter, ErasureLog                         the header table follows; what is durably freed
//   SlabLifecycle, SlabSyncs                        slabs come, change and go; fdatasync
//   SlotTrials, DiskProbes                          suspect slots, disks that are off
//   LeftEntries                                     what a start could not serve, and kept
//   SlabRestore, SlotInspector                      the start; an online check
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "tiers/crypto/group_key.h"
#include "tiers/disk/disk.h"
#include "tiers/left_blocks.h"
#include "tiers/nvme/extent_catalog.h"
#include "tiers/nvme/slab_restore.h"
#include "tiers/nvme/slot_inspector.h"
#include "tiers/tier.h"
#include "tiers/tier_shares.h"

namespace terrace {

class NvmeTier final : public Tier, public LeftBlocks {
 public:
  struct Options {
    uint32_t domain_index = 0;
    std::string domain_name;
    DomainSecret secret{};
    std::vector<Disk*> disks;              // ≥ 1; slabs are spread evenly
    std::vector<std::string> lost_mounts;  // by disk, for troubles(); none: all are where they lay
    std::vector<DriveTrouble>
        not_opened;  // of drives that are not among the disks; told as they are
    // Slab files, with their directories, that missed an erasure and could not be read a moment
    // ago. They are left alone though they may be read by now.
    std::set<std::string> outdated_files;
    // Over all domains, each under its domain_index; outlive the tier. None: capacity_bytes are its
    // own, and nobody else's.
    TierShares* shares = nullptr;
    uint64_t capacity_bytes = 0;
    uint64_t slab_bytes = 1 * kGiB;
    // Payloads are encrypted; the disks are then CipherDisks.
    PayloadEncryption encryption;
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

  // At start, before anything else is asked: what a predecessor left.
  SlabRestore& restore();
  // For an online check.
  SlotInspector& inspector();

  // ---- Tier ----
  TierKind kind() const override { return TierKind::kNvme; }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  void Quarantine(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  bool reads_ranges() const override;  // not if they are encrypted
  Status ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                   std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  void Amend(const Extent& extent, const BlockRecord& record) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  uint64_t SilentUs(std::span<const Extent> extents) const override;
  bool is_persistent() const override { return true; }
  ErasureProgress erasures() const override;
  void AppendOwnersToDrop(uint64_t length_bytes, uint32_t part_count,
                          std::vector<uint32_t>* owners) override;
  bool AppendOwnersToGive(std::vector<uint32_t>* owners) override;
  bool AppendOwnersToMove(std::vector<uint32_t>* owners) override;
  bool IsToMove(const Extent& extent) const override;
  MovedState StateOfMoved(const Extent& extent) const override;
  void GiveUpMoving() override;
  void Tick() override;
  TierStats stats() const override;
  std::vector<DriveTrouble> troubles() const override;

  // ---- LeftBlocks ----
  bool has_left() const override;
  void MarkLeft(const std::optional<GroupId>& group, uint64_t position) override;
  std::optional<uint64_t> MarkLeftBelow(const std::optional<GroupId>& group,
                                        const BlockKey& key) override;
  void EraseLeftKey(const std::optional<GroupId>& group, const BlockKey& key,
                    UnindexedTaken* taken) override;
  bool EraseLeft(uint32_t* budget, UnindexedTaken* taken) override;

  // Nothing is on its way: no transfer, no entry to table or catalog, no erasure. What a catalog is
  // marked complete for.
  bool is_quiet() const;

  // From the catalog's keeper, on the store thread.
  void OnCataloged(uint32_t slab, uint32_t slot);
  // Reads one entry back, for the catalog's thread: any thread, blocking. kNotFound: never written.
  Status ReadEntryNow(uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace terrace
