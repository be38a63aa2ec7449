#include "contract/tiers/tier_contract.h"
#include "sim/fault_tier.h"
#include "sim/memory_tier.h"

namespace terrace {
namespace {

constexpr uint32_t kQueueMax = 16;

class MemoryHarness : public TierHarness {
 public:
  explicit MemoryHarness(TierListener& listener)
      : tier_({.capacity_bytes = 12 << 20, .queue_max = kQueueMax, .seed = 3}) {
    tier_.SetListener(&listener);
  }
  Tier& tier() override { return tier_; }
  void Settle() override {
    while (tier_.NextCompletionUs() != UINT64_MAX) tier_.RunUntil(tier_.NextCompletionUs());
  }
  std::span<std::byte> Buffer(uint64_t length_bytes) override {
    return buffers_.Take(length_bytes);
  }
  uint32_t queue_max() const override { return kQueueMax; }

 protected:
  sim::MemoryTier tier_;

 private:
  PlainBuffers buffers_;
};

// Without faults the decorator is invisible; with hanging ones it still completes everything once.
class FaultHarness : public MemoryHarness {
 public:
  FaultHarness(TierListener& listener, uint32_t hang_rate_ppm)
      : MemoryHarness(listener), faulty_(tier_, 5) {
    tier_.SetListener(&faulty_);
    faulty_.SetListener(&listener);
    faulty_.SetRate(sim::Fault::kHangs, hang_rate_ppm);
  }
  Tier& tier() override { return faulty_; }
  void Settle() override {
    MemoryHarness::Settle();
    faulty_.ReleaseHung();
  }

 private:
  sim::FaultTier faulty_;
};

INSTANTIATE_TEST_SUITE_P(
    Sim, TierContract,
    testing::Values(TierFactory{"memory",
                                [](TierListener& listener) {
                                  return std::make_unique<MemoryHarness>(listener);
                                }},
                    TierFactory{"faultless",
                                [](TierListener& listener) {
                                  return std::make_unique<FaultHarness>(listener, 0);
                                }},
                    TierFactory{"hanging",
                                [](TierListener& listener) {
                                  return std::make_unique<FaultHarness>(listener, 300'000);
                                }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
