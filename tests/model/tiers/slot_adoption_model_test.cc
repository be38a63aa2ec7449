// A successor's allocator, made from the table's bytes alone, against the one that wrote them:
// random histories over several generations of daemons.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tiers/arena/slot_allocator.h"

namespace terrace {
namespace {

constexpr uint32_t kSeeds = 32;
constexpr uint32_t kDaemons = 6;
constexpr uint32_t kStepsPerDaemon = 4000;
constexpr uint32_t kClasses = 5;

class Model {
 public:
  explicit Model(uint64_t seed)
      : random_(seed),
        segment_bytes_((4 + random_() % 29) * kExtentUnitBytes),
        segments_max_(2 + static_cast<uint32_t>(random_() % 5)),
        table_(SlotTableBytes(segment_bytes_, segments_max_)),
        is_populated_(segments_max_) {
    const uint64_t pages_max = segment_bytes_ / kArenaPageBytes;
    while (class_bytes_.size() < kClasses) {
      const uint64_t pages = (pages_max >> (random_() % 12)) + random_() % 3;
      class_bytes_.push_back(std::clamp<uint64_t>(pages, 1, pages_max) * kArenaPageBytes);
    }
    slots_ = Fresh();
    AddClasses();
  }

  void Step() {
    const uint64_t dice = random_() % 100;
    if (dice < 1) {
      Populate();
    } else if (dice < 60) {
      Allocate();
    } else if (!live_.empty()) {
      Free();
    }
  }

  // Another daemon, from the bytes.
  void Succeed() {
    const SlotAllocator::Usage before = slots_->usage();
    std::unique_ptr<SlotAllocator> successor = Fresh();
    std::vector<SlotAllocator::AdoptedSlot> adopted;
    successor->Adopt(&adopted);
    successor->CheckInvariants();
    ASSERT_EQ(adopted.size(), live_.size());
    const SlotAllocator::Usage after = successor->usage();
    EXPECT_EQ(after.used_bytes, before.used_bytes);
    EXPECT_EQ(after.free_slot_bytes, before.free_slot_bytes);
    EXPECT_EQ(after.waste_bytes, before.waste_bytes);
    EXPECT_EQ(after.unassigned_bytes, before.unassigned_bytes);
    for (uint32_t segment = 0; segment < segments_max_; ++segment) {
      EXPECT_EQ(successor->segment_state(segment), slots_->segment_state(segment));
    }
    slots_ = std::move(successor);
    AddClasses();
    for (const auto& [slot, is_torn] : adopted) {
      EXPECT_FALSE(is_torn);
      const auto live = live_.find(slots_->row(slot).block.commit_id);
      ASSERT_NE(live, live_.end());
      EXPECT_EQ(live->second.slot, slot);
      EXPECT_EQ(slots_->row(slot).state, live->second.state);
      for (uint32_t c = 0; c < kClasses; ++c) {
        if (c == live->second.class_index) {
          EXPECT_TRUE(slots_->Claim(slot, c));
        } else if (class_bytes_[c] != class_bytes_[live->second.class_index]) {
          EXPECT_FALSE(slots_->Claim(slot, c));
        }
      }
    }
    slots_->CheckInvariants();
  }

 private:
  struct Live {
    SlotRef slot;
    uint32_t class_index = 0;
    SlotState state = SlotState::kReserved;
  };

  std::unique_ptr<SlotAllocator> Fresh() const {
    auto slots = std::make_unique<SlotAllocator>(
        SlotAllocator::Options{.segment_bytes = segment_bytes_,
                               .segments_max = segments_max_,
                               .slot_table = {const_cast<std::byte*>(table_.data()), table_.size()},
                               .table_seed = 42});
    for (uint32_t segment = 0; segment < segments_max_; ++segment) {
      if (is_populated_[segment]) slots->SegmentPopulated(segment);
    }
    return slots;
  }
  void AddClasses() {
    for (uint32_t c = 0; c < kClasses; ++c) {
      ASSERT_EQ(slots_->AddClass(class_bytes_[c], c).value(), c);
    }
  }
  void Populate() {
    for (uint32_t segment = 0; segment < segments_max_; ++segment) {
      if (is_populated_[segment]) continue;
      is_populated_[segment] = true;
      return slots_->SegmentPopulated(segment);
    }
  }
  void Allocate() {
    const auto class_index = static_cast<uint32_t>(random_() % kClasses);
    const uint64_t name = ++last_name_;
    const Result<SlotRef> slot =
        slots_->Allocate(class_index, {.commit_id = name, .group_tag = class_index});
    if (!slot.ok()) return;
    Live live{.slot = *slot, .class_index = class_index};
    if (random_() % 4 != 0) {
      live.state = random_() % 8 == 0 ? SlotState::kFenced : SlotState::kSealed;
      slots_->row(*slot).state = live.state;
    }
    live_.emplace(name, live);
  }
  void Free() {
    auto at = live_.lower_bound(random_() % (last_name_ + 1));
    if (at == live_.end()) at = live_.begin();
    slots_->Free(at->second.slot);
    live_.erase(at);
  }

  std::mt19937_64 random_;
  const uint64_t segment_bytes_;
  const uint32_t segments_max_;
  std::vector<std::byte> table_;
  std::vector<bool> is_populated_;
  std::vector<uint64_t> class_bytes_;
  std::unique_ptr<SlotAllocator> slots_;
  std::map<uint64_t, Live> live_;  // by commit id
  uint64_t last_name_ = 0;
};

TEST(SlotAdoptionModel, SuccessorKnowsWhatThePredecessorKnew) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Model model(seed);
    for (uint32_t daemon = 0; daemon < kDaemons; ++daemon) {
      for (uint32_t step = 0; step < kStepsPerDaemon; ++step) model.Step();
      model.Succeed();
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace terrace
