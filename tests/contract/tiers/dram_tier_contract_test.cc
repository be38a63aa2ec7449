#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "contract/tiers/tier_contract.h"
#include "tiers/arena/dram_tier.h"

namespace terrace {
namespace {

constexpr uint64_t kSegmentBytes = 8 * kMiB;
constexpr uint32_t kSegments = 3;
constexpr uint32_t kQueueMax = 8;

// Tasks run in order by whoever calls Run.
class TaskQueue {
 public:
  void Post(DramTier::Task task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    posted_.notify_one();
  }
  // An empty task ends the run.
  void RunUntilEmptyTask() {
    while (RunOne()) {
    }
  }
  bool RunOne() {
    std::unique_lock lock(mutex_);
    posted_.wait(lock, [this] { return !tasks_.empty(); });
    const DramTier::Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (!task) return false;
    task();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<DramTier::Task> tasks_;
};

// Copies on a real thread; the test's thread is the store thread.
class DramHarness : public TierHarness {
 public:
  explicit DramHarness(TierListener& listener)
      : memory_(buffers_.Take(kSegments * kSegmentBytes)),
        table_(SlotTableBytes(kSegmentBytes, kSegments)),
        slots_({.segment_bytes = kSegmentBytes,
                .segments_max = kSegments,
                .classes_max = 64,
                .slot_table = table_}),
        tier_({.slots = &slots_,
               .segment_base = [this](uint32_t s) { return &memory_[s * kSegmentBytes]; },
               .copy_executor = [this](DramTier::Task task) { copies_.Post(std::move(task)); },
               .store_executor = [this](DramTier::Task task) { done_.Post(std::move(task)); },
               .queue_max = kQueueMax},
              listener),
        copier_([this] { copies_.RunUntilEmptyTask(); }) {
    for (uint32_t segment = 0; segment < kSegments; ++segment) slots_.SegmentPopulated(segment);
  }
  ~DramHarness() override {
    copies_.Post(nullptr);
    copier_.join();
  }
  Tier& tier() override { return tier_; }
  void Settle() override {
    while (tier_.stats().transfers_in_flight > 0) done_.RunOne();
  }
  std::span<std::byte> Buffer(uint64_t length_bytes) override {
    return buffers_.Take(length_bytes);
  }
  uint32_t queue_max() const override { return kQueueMax; }

 private:
  PlainBuffers buffers_;
  std::span<std::byte> memory_;
  std::vector<std::byte> table_;
  SlotAllocator slots_;
  TaskQueue copies_;
  TaskQueue done_;
  DramTier tier_;
  std::thread copier_;
};

INSTANTIATE_TEST_SUITE_P(
    Dram, TierContract,
    testing::Values(TierFactory{
        "dram", [](TierListener& listener) { return std::make_unique<DramHarness>(listener); }}),
    [](const auto& info) { return info.param.name; });

// A slot handed out by the allocator itself moves into another one as a read.
TEST(DramTier, MovesASlotThatTheStoreAllocated) {
  std::vector<std::byte> memory(2 * kSegmentBytesMin), table(SlotTableBytes(kSegmentBytesMin, 2));
  SlotAllocator slots({.segment_bytes = kSegmentBytesMin, .segments_max = 2, .slot_table = table});
  slots.SegmentPopulated(0);
  struct Done : TierListener {
    void OnPersisted(uint32_t, uint32_t, CommitId, uint32_t) override {}
    void OnRoom(uint32_t) override {}
    void OnTransferDone(TransferId transfer_id, Status status) override {
      EXPECT_TRUE(status.ok());
      transfer_ids.push_back(transfer_id);
    }
    std::vector<TransferId> transfer_ids;
  } done;
  std::deque<DramTier::Task> tasks;
  const auto post = [&](DramTier::Task task) { tasks.push_back(std::move(task)); };
  const auto base = [&](uint32_t segment) { return &memory[segment * kSegmentBytesMin]; };
  DramTier tier(
      {.slots = &slots, .segment_base = base, .copy_executor = post, .store_executor = post}, done);
  const uint32_t class_index = slots.AddClass(64 * kKiB, 1).value();
  slots.Allocate(class_index).value();
  const SlotRef from = slots.Allocate(class_index).value();
  std::fill_n(base(0) + 64 * kKiB, 64 * kKiB, std::byte{7});

  slots.SegmentPopulated(1);
  slots.BeginDrain(0);
  const SlotRef to = slots.Allocate(class_index).value();
  ASSERT_EQ(to.address.segment, 1u);
  const Extent extent = DramTier::ExtentOf(from, 64 * kKiB);
  EXPECT_EQ(DramTier::SlotOf(extent), from);
  ASSERT_TRUE(tier.Read(5, extent, {base(1), 64 * kKiB}).ok());
  for (; !tasks.empty(); tasks.pop_front()) DramTier::Task(tasks.front())();
  EXPECT_EQ(done.transfer_ids, std::vector<TransferId>{5});
  EXPECT_TRUE(std::all_of(base(1), base(1) + 64 * kKiB, [](auto b) { return b == std::byte{7}; }));
  tier.Free(extent);
  EXPECT_FALSE(slots.IsCurrent(from));
}

}  // namespace
}  // namespace terrace
