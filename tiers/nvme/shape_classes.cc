#include "tiers/nvme/shape_classes.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

Result<ShapeClass*> ShapeClasses::FindOrMake(const SlabShape& shape) {
  if (ShapeClass* found = Find(shape)) return found;
  const Result<SlabGeometry> geometry = SlabGeometry::Of(shape, slab_bytes_);
  if (!geometry.ok()) return geometry.status();
  if (classes_.size() >= kShapesMax) return Status(StatusCode::kNoSpace, "too many shapes");
  ShapeClass& made = classes_[shape];
  made.geometry_ = *geometry;
  made.on_disk_.resize(disks_.count());
  return &made;
}

ShapeClass* ShapeClasses::Find(const SlabShape& shape) {
  const auto found = classes_.find(shape);
  return found == classes_.end() ? nullptr : &found->second;
}

void ShapeClasses::AddFound(const SlabGeometry& geometry) {
  ShapeClass& shape_class = classes_[geometry.shape];
  if (!shape_class.on_disk_.empty()) return;
  shape_class.on_disk_.resize(disks_.count());
  const Result<SlabGeometry> of_today = SlabGeometry::Of(geometry.shape, slab_bytes_);
  shape_class.geometry_ = of_today.ok() ? of_today.value() : geometry;
}

// Of the disks that have a free slot the one with the least bytes in flight; among equals they take
// turns.
NvmeSlab* ShapeClasses::Pick(ShapeClass& shape_class) {
  const uint32_t disk_count = disks_.count();
  uint32_t best = disk_count;
  for (uint32_t step = 1; step <= disk_count; ++step) {
    const uint32_t disk = (shape_class.last_disk_ + step) % disk_count;
    if (!disks_.is_on(disk) || shape_class.on_disk_[disk].open.empty()) continue;
    if (best == disk_count || disks_.transfer_bytes(disk) < disks_.transfer_bytes(best)) {
      best = disk;
    }
  }
  if (best == disk_count) return nullptr;
  shape_class.last_disk_ = best;
  return &slabs_[shape_class.on_disk_[best].open.front()];
}

uint32_t ShapeClasses::Take(NvmeSlab& slab) {
  OnDisk& on_disk = OnDiskOf(slab);
  TERRACE_CHECK(!on_disk.open.empty() && on_disk.open.front() == slab.index,
                "the slab whose turn it is gives the slot");
  TERRACE_CHECK(slab.phase == SlabPhase::kActive, "slots come from slabs that take blocks");
  on_disk.open.pop_front();
  const uint32_t slot = slab.slots.Take();
  --on_disk.free_count;
  if (slab.slots.free_count() > 0) on_disk.open.push_back(slab.index);
  return slot;
}

void ShapeClasses::Erase(NvmeSlab& slab, uint32_t slot) {
  slab.slots.SetState(slot, SlabSlotState::kErasing);
  if (slab.phase == SlabPhase::kActive) ++OnDiskOf(slab).erasing_count;
}

void ShapeClasses::Free(NvmeSlab& slab, uint32_t slot) {
  const bool was_erasing = slab.slots[slot].state == SlabSlotState::kErasing;
  slab.slots.PushFree(slot);
  if (slab.phase != SlabPhase::kActive) return;
  OnDisk& on_disk = OnDiskOf(slab);
  if (was_erasing) --on_disk.erasing_count;
  ++on_disk.free_count;
  if (slab.slots.free_count() == 1) on_disk.open.push_back(slab.index);
}

void ShapeClasses::Open(NvmeSlab& slab) {
  TERRACE_CHECK(slab.phase != SlabPhase::kActive, "a slab is opened once");
  slab.phase = SlabPhase::kActive;
  ShapeClass& shape_class = Of(slab.geometry.shape);
  OnDisk& on_disk = shape_class.on_disk_[slab.disk];
  ++shape_class.slab_count_;
  on_disk.free_count += slab.slots.free_count();
  on_disk.erasing_count += slab.slots.erasing_count();
  if (slab.slots.free_count() > 0) on_disk.open.push_back(slab.index);
}

void ShapeClasses::Close(NvmeSlab& slab) {
  TERRACE_CHECK(slab.phase == SlabPhase::kActive, "a slab that takes blocks can be closed");
  ShapeClass& shape_class = Of(slab.geometry.shape);
  OnDisk& on_disk = shape_class.on_disk_[slab.disk];
  --shape_class.slab_count_;
  on_disk.free_count -= slab.slots.free_count();
  on_disk.erasing_count -= slab.slots.erasing_count();
  std::erase(on_disk.open, slab.index);
}

void ShapeClasses::BeginComing(const SlabShape& shape, uint32_t disk) {
  ++Of(shape).on_disk_[disk].coming_count;
}

void ShapeClasses::EndComing(const SlabShape& shape, uint32_t disk) {
  uint32_t& coming_count = Of(shape).on_disk_[disk].coming_count;
  TERRACE_CHECK(coming_count > 0, "a slab that was coming has come, or never will");
  --coming_count;
}

std::vector<ShapeClass*> ShapeClasses::Wanting() {
  std::vector<ShapeClass*> wanting;
  for (auto& [shape, shape_class] : classes_) {
    if (shape_class.is_wanting_) wanting.push_back(&shape_class);
  }
  return wanting;
}

bool ShapeClasses::IsSlabComing(const ShapeClass& shape_class) const {
  return std::ranges::any_of(shape_class.on_disk_,
                             [](const OnDisk& on_disk) { return on_disk.coming_count > 0; });
}

bool ShapeClasses::IsRoomComing(const ShapeClass& shape_class) const {
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    if (!disks_.is_on(disk)) continue;
    const OnDisk& on_disk = shape_class.on_disk_[disk];
    if (on_disk.coming_count > 0 || on_disk.erasing_count > 0) return true;
  }
  return false;
}

bool ShapeClasses::IsShort(const ShapeClass& shape_class) const {
  uint64_t free_count = 0;
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    if (disks_.is_on(disk)) free_count += shape_class.on_disk_[disk].free_count;
  }
  return free_count * 4 < shape_class.geometry_.slot_count && !IsSlabComing(shape_class);
}

bool ShapeClasses::IsNarrow(const ShapeClass& shape_class) const {
  uint32_t disks_on = 0;
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) disks_on += disks_.is_on(disk);
  return shape_class.slab_count_ < disks_on && !IsSlabComing(shape_class);
}

bool ShapeClasses::IsPoor(const ShapeClass& shape_class) const {
  if (shape_class.slab_count_ == 0) return true;
  uint64_t slab_count = 0;
  uint64_t class_count = 0;
  for (const auto& [shape, other] : classes_) {
    slab_count += other.slab_count_;
    class_count += other.slab_count_ > 0;
  }
  return shape_class.slab_count_ * class_count * 4 < slab_count;
}

NvmeSlab* ShapeClasses::EmptiestOfOthers(const ShapeClass& shape_class) const {
  NvmeSlab* best = nullptr;
  uint64_t best_bytes = 0;
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || slab->phase != SlabPhase::kActive ||
        slab->slots.quarantined_count() > 0 ||
        slab->geometry.shape == shape_class.geometry_.shape || !disks_.is_on(slab->disk) ||
        ClassOf(*slab).slab_count_ <= shape_class.slab_count_) {
      continue;
    }
    const uint64_t owned_bytes = slab->slots.owned_count() * slab->slot_bytes();
    if (best != nullptr && owned_bytes >= best_bytes) continue;
    best = slab.get();
    best_bytes = owned_bytes;
  }
  return best;
}

}  // namespace terrace
