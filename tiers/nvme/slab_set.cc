#include "tiers/nvme/slab_set.h"

#include <numeric>
#include <utility>

#include "terrace/check.h"

namespace terrace {

void SlabSet::CountIn(TierShares& shares, uint32_t domain_index) {
  shares_ = &shares;
  domain_index_ = domain_index;
  Count();
}

void SlabSet::Count() {
  if (shares_ != nullptr) shares_->SetHeld(domain_index_, file_bytes_total());
}

NvmeSlab* SlabSet::Find(const Extent& extent) const {
  NvmeSlab* const slab = At(extent.shard);
  if (slab == nullptr || extent.position >= slab->slots.count()) return nullptr;
  const SlabSlot& slot = slab->slots[static_cast<uint32_t>(extent.position)];
  const bool is_same =
      slot.generation == extent.generation && slab->slot_bytes() == extent.length_bytes;
  return slot.is_owned() && is_same ? slab : nullptr;
}

uint32_t SlabSet::FreeIndex() const {
  uint32_t index = 0;
  while (At(index) != nullptr || indices_left_alone_.contains(index)) ++index;
  return index;
}

NvmeSlab& SlabSet::Add(uint32_t index, uint32_t disk, DiskFile file, uint64_t file_bytes) {
  TERRACE_CHECK(index <= kSlabIndexMax, "slabs are numbered up to a limit");
  TERRACE_CHECK(At(index) == nullptr, "two slabs of one number would be taken for each other");
  TERRACE_CHECK(file != kDiskFileNone, "a slab has a file");
  if (index >= slabs_.size()) slabs_.resize(index + 1);
  slabs_[index] = std::make_unique<NvmeSlab>(index, disk, file, &totals_);
  slabs_[index]->geometry.slab_bytes = file_bytes;
  file_bytes_[disk] += file_bytes;
  Count();
  return *slabs_[index];
}

void SlabSet::Remove(uint32_t index) {
  NvmeSlab& slab = *slabs_[index];
  if (!slab.is_gone) file_bytes_[slab.disk] -= slab.geometry.slab_bytes;
  slab.slots.Forget();
  Withdraw(index);
  slabs_[index].reset();
  Count();
}

bool SlabSet::MarkGone(NvmeSlab& slab) {
  if (std::exchange(slab.is_gone, true)) return false;
  file_bytes_[slab.disk] -= slab.geometry.slab_bytes;
  Count();
  return true;
}

void SlabSet::LeaveAlone(uint32_t index, uint32_t disk, uint64_t file_bytes) {
  indices_left_alone_.insert(index);
  left_alone_bytes_ += file_bytes;
  file_bytes_[disk] += file_bytes;
  Count();
}

uint64_t SlabSet::file_bytes_total() const {
  return std::accumulate(file_bytes_.begin(), file_bytes_.end(), uint64_t{0});
}

void SlabSet::Publish(const NvmeSlab& slab) {
  TERRACE_CHECK(slab.slots.count() == slab.geometry.slot_count, "a slab that is read has a shape");
  std::lock_guard lock(places_mutex_);
  if (places_.size() <= slab.index) places_.resize(slab.index + 1);
  places_[slab.index] = {
      .disk = slab.disk, .file = slab.file, .geometry = slab.geometry, .uuid = slab.uuid};
}

void SlabSet::Withdraw(uint32_t index) {
  std::lock_guard lock(places_mutex_);
  if (index < places_.size()) places_[index].reset();
}

std::optional<SlabPlace> SlabSet::FindPlace(uint32_t index) const {
  std::lock_guard lock(places_mutex_);
  return index < places_.size() ? places_[index] : std::nullopt;
}

}  // namespace terrace
