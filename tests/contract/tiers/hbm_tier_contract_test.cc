// The memory of a device, with one client that executes its orders.
#include <cstring>
#include <deque>
#include <vector>

#include "contract/tiers/tier_contract.h"
#include "terrace/checksum.h"
#include "tiers/hbm/hbm_tier.h"

namespace terrace {
namespace {

constexpr uint64_t kSlabBytes = 16 * kMiB;
constexpr uint32_t kSlabs = 2;
constexpr uint32_t kQueueMax = 8;
constexpr ExecutorId kClient = 7;

class HbmHarness : public TierHarness, public WorkOrderSink {
 public:
  explicit HbmHarness(TierListener& listener)
      : device_(kSlabs * kSlabBytes),
        tier_({.slab_bytes = kSlabBytes,
               .slab_count = kSlabs,
               .locate = [this](const std::byte* slot) { return NameOf(slot); },
               .now_us = [] { return uint64_t{1}; },
               .orders_max = kQueueMax}) {
    tier_.Serve(&listener, this);
    tier_.AddExecutor(kClient);
  }
  Tier& tier() override { return tier_; }
  void Settle() override {
    while (!orders_.empty()) {
      const protocol::WorkOrder order = orders_.front();
      orders_.pop_front();
      std::byte* const device =
          &device_[(order.device.segment - protocol::kDeviceSegmentFirst) * kSlabBytes +
                   order.device.page * kArenaPageBytes];
      std::byte* const arena = const_cast<std::byte*>(named_[order.arena.segment]);
      const bool is_promotion = order.kind == protocol::OrderKind::kPromote;
      std::memcpy(is_promotion ? device : arena, is_promotion ? arena : device, order.length_bytes);
      const protocol::OrderDoneRequest done{.order_id = order.order_id,
                                            .generation = order.generation};
      ASSERT_TRUE(tier_.OrderDone(kClient, done, {}).ok());
    }
  }
  std::span<std::byte> Buffer(uint64_t length_bytes) override {
    return buffers_.Take(length_bytes);
  }
  uint32_t queue_max() const override { return kQueueMax; }

  void OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                   std::span<const uint64_t> /*part_bytes*/) override {
    EXPECT_EQ(executor, kClient);
    orders_.push_back(order);
  }

 private:
  SlotAddress NameOf(const std::byte* slot) {
    named_.push_back(slot);
    return {static_cast<uint32_t>(named_.size() - 1), 0};
  }

  PlainBuffers buffers_;
  std::vector<std::byte> device_;
  std::vector<const std::byte*> named_;
  std::deque<protocol::WorkOrder> orders_;
  HbmTier tier_;
};

INSTANTIATE_TEST_SUITE_P(
    Hbm, TierContract,
    testing::Values(TierFactory{
        "hbm", [](TierListener& listener) { return std::make_unique<HbmHarness>(listener); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
