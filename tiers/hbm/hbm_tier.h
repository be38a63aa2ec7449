// HbmTier: the memory of one device as a Tier. The daemon never touches a device, so every transfer
// is a *work order*: a copy between a slot in the device's memory and one in the arena that a
// client of the device, its *executor*, makes and reports.
//
// An order is with one executor at a time and ends once: by that executor's answer, or, if the
// executor is proven dead, with another one or not at all. Until then both slots stay what they
// are, whoever has lost patience: a hung executor may still write. An answer counts if it is of
// this order, this slot's generation, this executor, in time and, of a promotion, with the
// checksums that the block has; anything else ends the transfer as a failure, and nothing is
// published.
//
// THREADING: as Tier. OWNERSHIP: the listener and the sink outlive the tier's use.
// LIMITS: Options. INVARIANT: an order that is with an executor has its transfer in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "terrace/protocol_device.h"
#include "tiers/arena/slot_allocator.h"
#include "tiers/tier.h"

namespace terrace {

using ExecutorId = uint64_t;

// How orders reach executors.
class WorkOrderSink {
 public:
  virtual ~WorkOrderSink() = default;
  // Must only queue: it may not call the tier.
  virtual void OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                           std::span<const uint64_t> part_bytes) = 0;
};

class HbmTier : public Tier {
 public:
  struct Options {
    uint32_t domain_index = 0;
    uint64_t slab_bytes = kSegmentBytesDefault;
    uint32_t slab_count = 0;  // 1 to protocol::kDeviceSlabsMax
    // Where a slot that begins here lies in the arena.
    std::function<SlotAddress(const std::byte* slot)> locate;
    std::function<uint64_t()> now_us;
    uint64_t order_deadline_us = 2'000'000;
    uint32_t orders_max = 64;              // accepted and not ended; beyond: kBusy
    uint32_t orders_per_executor_max = 4;  // told and not answered
    uint32_t failures_max = 8;             // in a row, of an executor; then it gets no more
    uint64_t bytes_per_us = 10'000;        // for predictions only
  };
  explicit HbmTier(Options options);
  ~HbmTier() override;
  HbmTier(const HbmTier&) = delete;
  HbmTier& operator=(const HbmTier&) = delete;

  // Before the first transfer.
  void Serve(TierListener* listener, WorkOrderSink* sink);

  // Where an extent begins, as clients name it: protocol::kDeviceSegmentFirst + slab, and page.
  static SlotAddress AddressOf(const Extent& extent);
  uint64_t slab_bytes() const { return options_.slab_bytes; }
  uint32_t slab_count() const { return options_.slab_count; }

  // ---- executors ----
  void AddExecutor(ExecutorId executor);
  // Its connection ended: no more orders. Those it has may still be under way.
  void HangUp(ExecutorId executor);
  // It touches nothing any more: its orders go to others.
  void ProofOfDeath(ExecutorId executor);
  // kGone: it has no such order (any more).
  Status OrderDone(ExecutorId executor, const protocol::OrderDoneRequest& done,
                   std::span<const Checksum> checksums);

  struct OrderStats {
    uint32_t executors = 0;  // that get orders
    uint32_t queued = 0;     // with nobody
    uint32_t late = 0;       // past their deadline, with an executor that has not answered
    uint64_t issued = 0, reissued = 0;
    uint64_t refused = 0;  // the executor could not
    uint64_t wrong = 0;    // its checksums are not the block's
    uint64_t expired = 0;  // ended or answered after their deadline
  };
  OrderStats order_stats() const;

  TierKind kind() const override { return TierKind::kHbm; }
  bool is_addressable() const override { return true; }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  bool is_persistent() const override { return false; }
  // Orders that nobody has taken in time end here.
  void Tick() override;
  TierStats stats() const override;

 private:
  struct Order {
    TransferId transfer_id = 0;
    protocol::WorkOrder told;
    std::vector<uint64_t> part_bytes;
    std::vector<Checksum> roots;  // of a promotion: what the device is to hold
    uint64_t deadline_us = 0;
    ExecutorId executor = 0;  // 0: with nobody
  };
  struct Executor {
    ExecutorId id = 0;
    uint32_t order_count = 0;
    uint32_t failure_count = 0;  // since its last success
    bool is_hung_up = false;
  };

  Executor* FindExecutor(ExecutorId id);
  bool IsUsable(const Executor& executor) const;
  bool IsLate(const Executor& executor) const;
  Status Refusal(const Extent& extent) const;
  void Begin(TransferId transfer_id, protocol::OrderKind kind, const Extent& extent,
             const std::byte* slot, Order order);
  // Gives queued orders to executors that may have one more.
  void Issue();
  Executor* Idlest();
  void End(uint64_t order_id, Status status);
  Status Judge(const Order& order, const protocol::OrderDoneRequest& done,
               std::span<const Checksum> checksums);
  void HealthMayHaveChanged(bool was_healthy);

  const Options options_;
  TierListener* listener_ = nullptr;
  WorkOrderSink* sink_ = nullptr;
  const std::span<std::byte> slot_table_;  // mapped for it alone
  std::unique_ptr<SlotAllocator> slots_;
  std::map<uint64_t, uint32_t> class_by_slot_bytes_;
  std::map<uint64_t, Order> orders_;  // by order id, so by age
  std::deque<uint64_t> queued_;
  std::vector<Executor> executors_;
  uint64_t next_order_id_ = 1;
  uint64_t bytes_in_flight_ = 0;
  OrderStats order_stats_;
  TierStats stats_;
};

}  // namespace terrace
