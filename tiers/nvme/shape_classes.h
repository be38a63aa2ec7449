// ShapeClasses: the size classes of a slab allocator. All slabs of one shape are one class; it
// knows which of them have free slots, on which disk, and whether it has few slabs beside the
// others. Slots are taken from the disk with the least bytes in flight.
//
// THREADING: one thread. OWNERSHIP: disks and slabs outlive it; classes stay for good.
// LIMITS: kShapesMax classes.
// INVARIANT: a class counts the slots of its kActive slabs, and lists each with a free one once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "terrace/status.h"
#include "tiers/nvme/nvme_disks.h"
#include "tiers/nvme/slab_set.h"

namespace terrace {

inline constexpr uint32_t kShapesMax = 1024;

class ShapeClass {
 public:
  const SlabGeometry& geometry() const { return geometry_; }  // of a new slab
  uint32_t slab_count() const { return slab_count_; }         // kActive
  bool is_wanting() const { return is_wanting_; }             // asked in vain

 private:
  friend class ShapeClasses;
  struct OnDisk {
    std::deque<uint32_t> open;  // active slabs with free slots, by turns
    uint64_t free_count = 0;    // in active slabs
    uint64_t erasing_count = 0;
    uint32_t coming_count = 0;  // being made or reshaped
  };
  SlabGeometry geometry_;
  std::vector<OnDisk> on_disk_;
  uint32_t slab_count_ = 0;
  uint32_t last_disk_ = 0;
  bool is_wanting_ = false;
};

class ShapeClasses {
 public:
  ShapeClasses(const NvmeDisks& disks, const SlabSet& slabs, uint64_t slab_bytes)
      : disks_(disks), slabs_(slabs), slab_bytes_(slab_bytes) {}

  // kInvalid: no slab can hold the shape. kNoSpace: kShapesMax.
  Result<ShapeClass*> FindOrMake(const SlabShape& shape);
  // Null: no slab of the shape was ever asked for.
  ShapeClass* Find(const SlabShape& shape);
  // REQUIRES: the class is there.
  ShapeClass& Of(const SlabShape& shape) { return classes_.at(shape); }
  // That of a slab found at start, whose shape may be too large for a slab of today.
  void AddFound(const SlabGeometry& geometry);

  // The slab that gives the next slot; null: none has one on a disk that is on.
  NvmeSlab* Pick(ShapeClass& shape_class);
  // A free slot of the slab that Pick returned.
  uint32_t Take(NvmeSlab& slab);
  // → kErasing, → kFree: and counts it, in a slab that takes blocks.
  void Erase(NvmeSlab& slab, uint32_t slot);
  void Free(NvmeSlab& slab, uint32_t slot);

  // The slab takes blocks from now on (kActive); no longer. REQUIRES for Close: kActive, and the
  // caller gives it another phase.
  void Open(NvmeSlab& slab);
  void Close(NvmeSlab& slab);
  // A slab of the shape is being made or reshaped; it has come, or never will.
  void BeginComing(const SlabShape& shape, uint32_t disk);
  void EndComing(const SlabShape& shape, uint32_t disk);
  void SetWanting(ShapeClass& shape_class, bool is_wanting) {
    shape_class.is_wanting_ = is_wanting;
  }
  std::vector<ShapeClass*> Wanting();

  // Slots will be free on a disk that is on, without anybody evicting.
  bool IsRoomComing(const ShapeClass& shape_class) const;
  // Less than a quarter of a slab is free, and no slab is coming.
  bool IsShort(const ShapeClass& shape_class) const;
  // It has fewer slabs than there are disks that are on, and none is coming.
  bool IsNarrow(const ShapeClass& shape_class) const;
  // No slab, or less than a quarter of what each shape would have if all had the same.
  bool IsPoor(const ShapeClass& shape_class) const;
  // Of slabs that could be given to the class, the one with the fewest bytes in use; null: none.
  NvmeSlab* EmptiestOfOthers(const ShapeClass& shape_class) const;

 private:
  using OnDisk = ShapeClass::OnDisk;
  const ShapeClass& ClassOf(const NvmeSlab& slab) const { return classes_.at(slab.geometry.shape); }
  OnDisk& OnDiskOf(const NvmeSlab& slab) { return Of(slab.geometry.shape).on_disk_[slab.disk]; }
  bool IsSlabComing(const ShapeClass& shape_class) const;

  const NvmeDisks& disks_;
  const SlabSet& slabs_;
  const uint64_t slab_bytes_;
  std::map<SlabShape, ShapeClass> classes_;
};

}  // namespace terrace
