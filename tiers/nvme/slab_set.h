// SlabSet: the slabs of a tier by number, the bytes of their files, and what other threads may know
// of them. Files that are not ours are no slabs, but keep their numbers and count.
//
// THREADING: one thread; FindPlace on any. OWNERSHIP: the slabs are its own; a reference holds
// until Remove. Shares outlive it. LIMITS: kSlabIndexMax.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "tiers/extent.h"
#include "tiers/nvme/nvme_slab.h"
#include "tiers/tier_shares.h"

namespace terrace {

inline constexpr uint32_t kSlabIndexMax = 65'535;

// One number for slab and slot.
inline uint64_t PlaceOf(uint32_t slab, uint32_t slot) { return uint64_t{slab} << 32 | slot; }
inline uint32_t SlabOf(uint64_t place) { return static_cast<uint32_t>(place >> 32); }
inline uint32_t SlotOf(uint64_t place) { return static_cast<uint32_t>(place); }

// A slab as other threads may see it.
struct SlabPlace {
  uint32_t disk = 0;
  DiskFile file = kDiskFileNone;
  SlabGeometry geometry;
  SlabUuid uuid;
};

class SlabSet {
 public:
  explicit SlabSet(uint32_t disk_count) : file_bytes_(disk_count) {}
  // From now on `shares` hear what the files take, as what the domain holds.
  void CountIn(TierShares& shares, uint32_t domain_index);

  // Null: no slab of that number.
  NvmeSlab* At(uint32_t index) const {
    return index < slabs_.size() ? slabs_[index].get() : nullptr;
  }
  // REQUIRES: there is one.
  NvmeSlab& operator[](uint32_t index) const { return *slabs_[index]; }
  // Null unless the extent is the present use of a slot: of slab extent.shard, slot
  // extent.position.
  NvmeSlab* Find(const Extent& extent) const;
  // By number; null where there is none.
  const std::vector<std::unique_ptr<NvmeSlab>>& all() const { return slabs_; }

  // The lowest number that neither a slab nor a file left alone has. May be above kSlabIndexMax.
  uint32_t FreeIndex() const;
  // A slab without slots, whose file counts `file_bytes`. REQUIRES: the number is free.
  NvmeSlab& Add(uint32_t index, uint32_t disk, DiskFile file, uint64_t file_bytes);
  // REQUIRES: nobody has a slot of it.
  void Remove(uint32_t index);
  // Its file is gone and no longer counts. False: known already.
  bool MarkGone(NvmeSlab& slab);
  // A file of that number that is not ours counts, and its number is not given to another.
  void LeaveAlone(uint32_t index, uint32_t disk, uint64_t file_bytes);

  // Bytes of files on a disk, those left alone included.
  uint64_t file_bytes(uint32_t disk) const { return file_bytes_[disk]; }
  uint64_t file_bytes_total() const;
  uint64_t left_alone_bytes() const { return left_alone_bytes_; }
  const SlotTotals& totals() const { return totals_; }

  // From now on other threads see the slab as it is; no longer. REQUIRES: it has a shape.
  void Publish(const NvmeSlab& slab);
  void Withdraw(uint32_t index);
  std::optional<SlabPlace> FindPlace(uint32_t index) const;  // any thread

 private:
  void Count();

  SlotTotals totals_;
  std::vector<std::unique_ptr<NvmeSlab>> slabs_;
  std::set<uint32_t> indices_left_alone_;
  std::vector<uint64_t> file_bytes_;  // by disk
  uint64_t left_alone_bytes_ = 0;
  TierShares* shares_ = nullptr;
  uint32_t domain_index_ = 0;

  mutable std::mutex places_mutex_;
  std::vector<std::optional<SlabPlace>> places_;  // under places_mutex_
};

}  // namespace terrace
