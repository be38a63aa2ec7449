#include <chrono>

#include "contract/tiers/disk_rig.h"
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

// On a real file system, by either engine.
class NvmeFileHarness : public TierHarness {
 public:
  NvmeFileHarness(TierListener& listener, DiskEngineChoice engine) {
    std::string why;
    auto disk = OpenDisk({.directory = scratch_.path() + "/domain",
                          .post = loop_.post(),
                          .engine = engine,
                          .queue_max = kQueueMax},
                         &why);
    EXPECT_TRUE(disk.ok()) << why;
    disk_ = std::move(*disk);
    tier_ = std::make_unique<NvmeTier>(NvmeTier::Options{
        .domain_name = "contract",
        .secret = sim::SecretFrom(1),
        .disks = {disk_.get()},
        .capacity_bytes = 10 * kSlabBytes,
        .slab_bytes = kSlabBytes,
        .now_us =
            [] {
              return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                               std::chrono::steady_clock::now().time_since_epoch())
                                               .count());
            },
        .random = [this] { return random_(); },
        .sync_interval_us = 1'000});
    tier_->SetListener(&listener);
  }
  ~NvmeFileHarness() override {
    tier_.reset();
    disk_.reset();
  }
  Tier& tier() override { return *tier_; }
  void Settle() override {
    for (int round = 0; round < 4; ++round) {
      tier_->Tick();
      EXPECT_TRUE(loop_.RunUntil([&] {
        disk_->Flush();
        return disk_->stats().requests_in_flight == 0;
      }));
    }
  }
  std::span<std::byte> Buffer(uint64_t length_bytes) override {
    return buffers_.Take(length_bytes);
  }
  uint32_t queue_max() const override { return kQueueMax; }

 private:
  PlainBuffers buffers_;
  ScratchDirectory scratch_{testing::TempDir()};
  StoreLoop loop_;
  std::mt19937_64 random_{1};
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<NvmeTier> tier_;
};

template <typename Harness, typename Argument>
TierFactory FactoryOf(const char* name, Argument argument) {
  return {name, [argument](TierListener& listener) {
            return std::make_unique<Harness>(listener, argument);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Nvme, TierContract,
    testing::Values(FactoryOf<NvmeHarness>("one_disk", size_t{1}),
                    FactoryOf<NvmeHarness>("three_disks", size_t{3}),
                    FactoryOf<NvmeFileHarness>("uring", DiskEngineChoice::kUring),
                    FactoryOf<NvmeFileHarness>("threads", DiskEngineChoice::kThreads)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
