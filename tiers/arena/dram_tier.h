// DramTier: the arena as a Tier. DRAM is the hub, and a move within it (draining a segment,
// emptying an extent) has both ends there: seen through this class it is a transfer like a
// promotion, and the Mover needs no second way of moving bytes.
//
// An extent is a slot of the SlotAllocator, which may hand out others directly: ExtentOf makes one
// of any slot. Row states are the caller's affair.
//
// THREADING: as Tier; copies run where copy_executor takes them. OWNERSHIP: both executors have run
// all they were given before the tier is destroyed. LIMITS: queue_max.
#pragma once

#include <functional>
#include <map>

#include "tiers/arena/slot_allocator.h"
#include "tiers/tier.h"

namespace terrace {

class DramTier : public Tier {
 public:
  using Task = std::function<void()>;
  struct Options {
    SlotAllocator* slots = nullptr;  // outlives the tier
    std::function<std::byte*(uint32_t segment)> segment_base;
    std::function<void(Task)> copy_executor;   // runs a task on another thread, off the store's
    std::function<void(Task)> store_executor;  // runs a task on the store thread, later
    uint64_t owner = 0;  // of the classes it adds; see SlotAllocator::AddClass
    uint32_t queue_max = 16;
    uint64_t bytes_per_us = 7000;  // one core's memcpy, measured; for predictions only
  };
  DramTier(Options options, TierListener& listener);

  static Extent ExtentOf(const SlotRef& slot, uint64_t length_bytes);
  static SlotRef SlotOf(const Extent& extent);

  TierKind kind() const override { return TierKind::kDram; }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  bool is_persistent() const override { return false; }
  TierStats stats() const override;

 private:
  struct Copy {
    Extent extent;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    bool is_read = false;
  };

  std::byte* BytesOf(const Extent& extent) const;
  // Why no transfer on `extent` can begin now.
  Status Refusal(const Extent& extent) const;
  void Begin(TransferId transfer_id, const Copy& copy);
  void Finish(TransferId transfer_id);

  const Options options_;
  TierListener& listener_;
  std::map<uint64_t, uint32_t> class_by_slot_bytes_;
  std::map<TransferId, Copy> in_flight_;  // at most queue_max
  uint64_t bytes_in_flight_ = 0;
  TierStats stats_;
};

}  // namespace terrace
