#include "contract/tiers/tier_contract.h"
#include "sim/nvme_rig.h"

namespace terrace {
namespace {

constexpr uint32_t kQueueMax = 16;
constexpr uint64_t kSlabBytes = 9 * kMiB;

class NvmeHarness : public TierHarness {
 public:
  NvmeHarness(TierListener& listener, size_t disk_count) : media_(disk_count) {
    std::vector<sim::SimMedium*> media;
    for (sim::SimMedium& medium : media_) media.push_back(&medium);
    rig_ = std::make_unique<sim::NvmeRig>(
        media,
        sim::NvmeRig::Options{.tier = {.secret = sim::SecretFrom(1),
                                       .capacity_bytes = 14 * kSlabBytes,
                                       .slab_bytes = kSlabBytes},
                              .disk = {.queue_max = kQueueMax}},
        &listener);
  }
  Tier& tier() override { return rig_->tier(); }
  void Settle() override { rig_->Settle(); }
  std::span<std::byte> Buffer(uint64_t length_bytes) override {
    return buffers_.Take(length_bytes);
  }
  uint32_t queue_max() const override { return kQueueMax; }

 private:
  PlainBuffers buffers_;
  std::vector<sim::SimMedium> media_;
  std::unique_ptr<sim::NvmeRig> rig_;
};

INSTANTIATE_TEST_SUITE_P(Nvme, TierContract,
                         testing::Values(TierFactory{"one_disk",
                                                     [](TierListener& listener) {
                                                       return std::make_unique<NvmeHarness>(
                                                           listener, 1);
                                                     }},
                                         TierFactory{"three_disks",
                                                     [](TierListener& listener) {
                                                       return std::make_unique<NvmeHarness>(
                                                           listener, 3);
                                                     }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
