// SlotAllocator against a std::map of what is handed out: random classes, random operations, the
// segments' life cycle included.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tiers/arena/slot_allocator.h"

namespace terrace {
namespace {

constexpr uint32_t kSeeds = 24;
constexpr uint32_t kStepsPerSeed = 60'000;
constexpr uint32_t kStepsPerCheck = 500;
constexpr size_t kStaleMax = 64;

class Model {
 public:
  explicit Model(uint64_t seed)
      : random_(seed),
        segment_bytes_((8 + random_() % 25) * kExtentUnitBytes),
        segments_max_(3 + static_cast<uint32_t>(random_() % 5)),
        table_(SlotTableBytes(segment_bytes_, segments_max_)),
        slots_({.segment_bytes = segment_bytes_,
                .segments_max = segments_max_,
                .classes_max = 6,
                .slot_table = table_}) {
    while (class_bytes_.size() < 6) {
      // From a page to a segment, the small ones as likely as the large ones.
      const uint64_t pages_max = segment_bytes_ / kArenaPageBytes;
      const uint64_t slot_bytes =
          std::max<uint64_t>(1, (pages_max >> (random_() % 14)) - random_() % 3) * kArenaPageBytes;
      if (!slots_.AddClass(slot_bytes, random_() % 3).ok()) continue;
      class_bytes_.push_back(slot_bytes);
    }
  }

  void Step() {
    const uint64_t dice = random_() % 1000;
    if (dice < 8) {
      Populate();
    } else if (dice < 11) {
      Drain();
    } else if (dice < 60) {
      AdvanceDrains();
    } else if (dice < 80) {
      JudgeForgeries();
    } else if (dice < 600 + (is_filling_ ? 150 : -150)) {
      Allocate();
    } else {
      FreeSome();
    }
    if (random_() % 4000 == 0) is_filling_ = !is_filling_;
  }

  void Check() {
    slots_.CheckInvariants();
    const SlotAllocator::Usage usage = slots_.usage();
    uint64_t used_bytes = 0;
    for (const auto& [place, live] : live_) used_bytes += live.slot_bytes;
    ASSERT_EQ(usage.used_bytes, used_bytes);
    ASSERT_EQ(usage.slots_used, live_.size());
    const uint64_t populated = segments_max_ - slots_.segment_count(SegmentState::kAbsent) -
                               slots_.segment_count(SegmentState::kPunching);
    ASSERT_EQ(usage.used_bytes + usage.free_slot_bytes + usage.waste_bytes + usage.unassigned_bytes,
              populated * segment_bytes_);
    for (uint32_t segment = 0; segment < segments_max_; ++segment) {
      std::vector<SlotRef> listed;
      slots_.SlotsInSegment(segment, 0, UINT32_MAX, &listed);
      ASSERT_EQ(listed.size(), LiveIn(segment));
      for (const SlotRef& slot : listed) ASSERT_TRUE(IsLive(slot));
    }
  }

  uint64_t no_space_count() const { return no_space_count_; }
  uint64_t advice_count() const { return advice_count_; }
  uint64_t punched_count() const { return punched_count_; }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // segment, offset
  struct Live {
    SlotRef slot;
    uint64_t slot_bytes = 0;
    uint32_t class_index = 0;
  };

  static Place PlaceOf(const SlotRef& slot) {
    return {slot.address.segment, slot.address.page * kArenaPageBytes};
  }
  bool IsLive(const SlotRef& slot) const {
    const auto found = live_.find(PlaceOf(slot));
    return found != live_.end() && found->second.slot == slot;
  }
  size_t LiveIn(uint32_t segment) const {
    return static_cast<size_t>(
        std::distance(live_.lower_bound({segment, 0}), live_.lower_bound({segment + 1, 0})));
  }
  std::map<Place, Live>::iterator AnyLive() {
    auto at = live_.lower_bound(
        {static_cast<uint32_t>(random_() % segments_max_), random_() % segment_bytes_});
    return at != live_.end() ? at : live_.begin();
  }

  void Allocate() {
    const auto class_index = static_cast<uint32_t>(random_() % class_bytes_.size());
    const Result<SlotRef> slot = slots_.Allocate(class_index);
    if (slot.ok()) {
      Take(*slot, class_index);
      return;
    }
    ASSERT_EQ(slot.code(), StatusCode::kNoSpace);
    ++no_space_count_;
    for (uint32_t segment = 0; segment < segments_max_; ++segment) {
      ASSERT_NE(slots_.segment_state(segment), SegmentState::kFree) << "any class fits there";
    }
    if (random_() % 4 == 0) FollowAdvice(class_index);
  }

  void Take(const SlotRef& slot, uint32_t class_index) {
    const uint64_t slot_bytes = class_bytes_[class_index];
    const Place place = PlaceOf(slot);
    ASSERT_LE(place.second + slot_bytes, segment_bytes_);
    ASSERT_EQ(slots_.segment_state(place.first), SegmentState::kAssigned);
    const auto next = live_.lower_bound(place);
    if (next != live_.end() && next->first.first == place.first) {
      ASSERT_LE(place.second + slot_bytes, next->first.second) << "slots overlap";
    }
    if (next != live_.begin() && std::prev(next)->first.first == place.first) {
      ASSERT_LE(std::prev(next)->first.second + std::prev(next)->second.slot_bytes, place.second)
          << "slots overlap";
    }
    const auto last = last_generation_.find({slot.address.segment, slot.row});
    if (last != last_generation_.end()) {
      ASSERT_GT(slot.generation, last->second) << "a row's generation only grows";
    }
    last_generation_[{slot.address.segment, slot.row}] = slot.generation;
    ASSERT_EQ(slots_.row(slot).state, SlotState::kReserved);
    slots_.row(slot).state = random_() % 16 == 0 ? SlotState::kFenced : SlotState::kSealed;
    ASSERT_TRUE(slots_.IsCurrent(slot));
    live_[place] = {slot, slot_bytes, class_index};
  }

  void FreeSlot(SlotRef slot) {
    ASSERT_TRUE(IsLive(slot));
    live_.erase(PlaceOf(slot));
    slots_.Free(slot);
    ASSERT_FALSE(slots_.IsCurrent(slot));
    if (stale_.size() < kStaleMax) {
      stale_.push_back(slot);
    } else {
      stale_[random_() % kStaleMax] = slot;
    }
  }

  void FreeSome() {
    for (uint64_t i = random_() % 3 == 0 ? 3 : 1; i > 0 && !live_.empty(); --i) {
      FreeSlot(AnyLive()->second.slot);
    }
  }

  // What the allocator advises to empty makes room for the class that asked.
  void FollowAdvice(uint32_t class_index) {
    std::vector<SlotRef> advised;
    if (slots_.SlotsInEmptiestExtent(class_index, &advised) == 0) {
      ASSERT_TRUE(advised.empty());
      return;
    }
    ++advice_count_;
    uint32_t own_count = 0;
    for (const SlotRef& slot : advised) {
      ASSERT_EQ(slots_.row(slot).state, SlotState::kSealed);
      own_count += live_.at(PlaceOf(slot)).class_index == class_index ? 1 : 0;
      FreeSlot(slot);
    }
    for (uint32_t i = 0; i <= own_count; ++i) {  // one slot more than the class had there
      const Result<SlotRef> slot = slots_.Allocate(class_index);
      ASSERT_TRUE(slot.ok()) << "the advice was followed";
      Take(*slot, class_index);
    }
  }

  void JudgeForgeries() {
    for (const SlotRef& slot : stale_) ASSERT_FALSE(slots_.IsCurrent(slot));
    SlotRef forged;
    forged.address = {static_cast<uint32_t>(random_() % (segments_max_ + 1)),
                      static_cast<uint32_t>(random_() % (segment_bytes_ / kArenaPageBytes + 1))};
    forged.row = static_cast<uint32_t>(random_() % (segment_bytes_ / kArenaPageBytes + 1));
    forged.generation = static_cast<uint32_t>(random_() % 4);
    ASSERT_EQ(slots_.IsCurrent(forged), IsLive(forged));
  }

  void Populate() {
    const auto segment = static_cast<uint32_t>(random_() % segments_max_);
    if (slots_.segment_state(segment) == SegmentState::kAbsent) slots_.SegmentPopulated(segment);
  }

  void Drain() {
    const auto segment = static_cast<uint32_t>(random_() % segments_max_);
    const SegmentState state = slots_.segment_state(segment);
    if (state == SegmentState::kFree || state == SegmentState::kAssigned) {
      slots_.BeginDrain(segment);
    }
  }

  void AdvanceDrains() {
    for (uint32_t segment = 0; segment < segments_max_; ++segment) {
      switch (slots_.segment_state(segment)) {
        case SegmentState::kDraining: {
          std::vector<SlotRef> left;
          slots_.SlotsInSegment(segment, 0, UINT32_MAX, &left);
          ASSERT_EQ(slots_.IsDrained(segment), left.empty());
          if (random_() % 16 == 0) {
            slots_.EndDrain(segment);
            ASSERT_EQ(slots_.segment_state(segment),
                      left.empty() ? SegmentState::kFree : SegmentState::kAssigned);
          } else if (left.empty()) {
            slots_.SetSegmentState(segment, SegmentState::kRevoking);
          } else {
            FreeSlot(left[random_() % left.size()]);
          }
          break;
        }
        case SegmentState::kRevoking:
          slots_.SetSegmentState(segment, SegmentState::kPunching);
          break;
        case SegmentState::kPunching:
          ++punched_count_;
          slots_.SetSegmentState(segment,
                                 random_() % 8 == 0 ? SegmentState::kFree : SegmentState::kAbsent);
          break;
        default:
          break;
      }
    }
  }

  std::mt19937_64 random_;
  const uint64_t segment_bytes_;
  const uint32_t segments_max_;
  std::vector<std::byte> table_;
  SlotAllocator slots_;
  std::vector<uint64_t> class_bytes_;
  std::map<Place, Live> live_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> last_generation_;  // by segment and row
  std::vector<SlotRef> stale_;
  bool is_filling_ = true;
  uint64_t no_space_count_ = 0;
  uint64_t advice_count_ = 0;
  uint64_t punched_count_ = 0;
};

TEST(SlotAllocatorModel, RandomOperationsMatchAMap) {
  uint64_t no_space_count = 0, advice_count = 0, punched_count = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Model model(seed);
    for (uint32_t step = 0; step < kStepsPerSeed; ++step) {
      model.Step();
      if (step % kStepsPerCheck == 0) model.Check();
      if (testing::Test::HasFatalFailure()) return;
    }
    no_space_count += model.no_space_count();
    advice_count += model.advice_count();
    punched_count += model.punched_count();
  }
  // The run went where it hurts.
  EXPECT_GT(no_space_count, 10'000u);
  EXPECT_GT(advice_count, 1'000u);
  EXPECT_GT(punched_count, 100u);
}

}  // namespace
}  // namespace terrace
