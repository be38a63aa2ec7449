#include "tiers/arena/slot_allocator.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <vector>

namespace terrace {
namespace {

constexpr uint64_t kSegmentBytes = 16 * kMiB;

// An allocator over a slot table of its own; `populated` segments are ready.
struct Arena {
  explicit Arena(uint32_t segments_max, uint32_t populated, uint64_t segment_bytes = kSegmentBytes)
      : table(SlotTableBytes(segment_bytes, segments_max)),
        slots({.segment_bytes = segment_bytes,
               .segments_max = segments_max,
               .classes_max = 4,
               .slot_table = table}) {
    for (uint32_t segment = 0; segment < populated; ++segment) slots.SegmentPopulated(segment);
  }
  uint32_t Class(uint64_t slot_bytes, uint64_t owner = 1) {
    return slots.AddClass(slot_bytes, owner).value();
  }
  SlotRef Take(uint32_t class_index) {
    const SlotRef slot = slots.Allocate(class_index).value();
    slots.row(slot).state = SlotState::kSealed;
    return slot;
  }
  std::vector<SlotRef> Fill(uint32_t class_index) {
    std::vector<SlotRef> taken;
    for (Result<SlotRef> slot = slots.Allocate(class_index); slot.ok();
         slot = slots.Allocate(class_index)) {
      slots.row(*slot).state = SlotState::kSealed;
      taken.push_back(*slot);
    }
    return taken;
  }

  std::vector<std::byte> table;
  SlotAllocator slots;
};

uint64_t OffsetBytes(const SlotRef& slot) { return slot.address.page * kArenaPageBytes; }

TEST(SlotAllocator, ExtentIsTheSmallestThatWastesAtMostTwoPercent) {
  Arena arena(1, 1, 256 * kMiB);
  EXPECT_EQ(arena.slots.extent_bytes(arena.Class(640 * kKiB)), 10 * kMiB);
  EXPECT_EQ(arena.slots.extent_bytes(arena.Class(2 * kMiB)), 2 * kMiB);
  EXPECT_EQ(arena.slots.extent_bytes(arena.Class(896 * kKiB)), 8 * kMiB);
  EXPECT_EQ(arena.slots.extent_bytes(arena.Class(1098 * 4 * kKiB)), 26 * kMiB);
}

TEST(SlotAllocator, ExtentIsTheLeastWastefulWhereNoneIsGoodEnough) {
  // In a segment of 4 MiB, slots of 1,540 KiB waste 24.8 % of 2 MiB and of 4 MiB alike: take 2 MiB.
  Arena arena(1, 1, 4 * kMiB);
  EXPECT_EQ(arena.slots.extent_bytes(arena.Class(1540 * kKiB)), 2 * kMiB);
  // 1.3 MiB: 35 % of 2 MiB, but 2.3 % of 4 MiB.
  EXPECT_EQ(arena.slots.extent_bytes(arena.Class(1332 * kKiB)), 4 * kMiB);
}

TEST(SlotAllocator, RefusesSlotsThatCannotBe) {
  Arena arena(1, 1);
  EXPECT_EQ(arena.slots.AddClass(0, 1).code(), StatusCode::kInvalid);
  EXPECT_EQ(arena.slots.AddClass(4097, 1).code(), StatusCode::kInvalid);
  EXPECT_EQ(arena.slots.AddClass(kSegmentBytes + kArenaPageBytes, 1).code(), StatusCode::kInvalid);
  for (int i = 0; i < 4; ++i) arena.Class(kArenaPageBytes);
  EXPECT_EQ(arena.slots.AddClass(kArenaPageBytes, 1).code(), StatusCode::kNoSpace);
}

TEST(SlotAllocator, SlotsTakenInSequenceAreConsecutive) {
  for (const uint64_t slot_bytes : {64 * kKiB, 640 * kKiB, 2 * kMiB}) {
    Arena arena(1, 1, 40 * kMiB);
    const std::vector<SlotRef> taken = arena.Fill(arena.Class(slot_bytes));
    ASSERT_EQ(taken.size(), 40 * kMiB / slot_bytes);
    for (size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(OffsetBytes(taken[i]), i * slot_bytes);
  }
}

TEST(SlotAllocator, RowsOfAnExtentAreDenseFromItsFirstChunk) {
  Arena arena(1, 1);
  arena.Take(arena.Class(2 * kMiB));
  const uint32_t small = arena.Class(64 * kKiB);
  EXPECT_EQ(arena.Take(small).row, 512u);
  EXPECT_EQ(arena.Take(small).row, 513u);
}

TEST(SlotAllocator, FreedSlotIsStaleAndItsPlaceComesBackWithAnotherGeneration) {
  Arena arena(1, 1);
  const uint32_t small = arena.Class(64 * kKiB);
  arena.Take(small);
  const SlotRef first = arena.Take(small);
  arena.slots.Free(first);
  EXPECT_FALSE(arena.slots.IsCurrent(first));
  const SlotRef second = arena.Take(small);
  EXPECT_EQ(second.address, first.address);
  EXPECT_EQ(second.generation, first.generation + 1);
  EXPECT_TRUE(arena.slots.IsCurrent(second));
  EXPECT_FALSE(arena.slots.IsCurrent(first));
}

TEST(SlotAllocator, GenerationOutlivesItsExtentAndItsSegment) {
  Arena arena(1, 1);
  const SlotRef first = arena.Take(arena.Class(64 * kKiB));
  arena.slots.Free(first);
  arena.slots.BeginDrain(0);
  arena.slots.SetSegmentState(0, SegmentState::kRevoking);
  arena.slots.SetSegmentState(0, SegmentState::kPunching);
  arena.slots.SetSegmentState(0, SegmentState::kAbsent);
  arena.slots.SegmentPopulated(0);
  const SlotRef second = arena.Take(arena.Class(128 * kKiB));
  EXPECT_EQ(second.row, first.row);
  EXPECT_GT(second.generation, first.generation);
}

TEST(SlotAllocator, NothingButThePresentUseIsCurrent) {
  Arena arena(2, 1);
  const uint32_t small = arena.Class(64 * kKiB);
  const SlotRef slot = arena.Take(small);
  EXPECT_FALSE(arena.slots.IsCurrent(SlotRef{}));
  for (const uint32_t row : {1u, 31u, 32u, 512u, 4096u, 0xFFFFFFFFu}) {
    SlotRef forged = slot;
    forged.row = row;
    EXPECT_FALSE(arena.slots.IsCurrent(forged)) << row;
  }
  SlotRef forged = slot;
  forged.address.page = 16;
  EXPECT_FALSE(arena.slots.IsCurrent(forged));
  forged = slot;
  forged.address.segment = 1;
  EXPECT_FALSE(arena.slots.IsCurrent(forged));
  forged.address.segment = 2;
  EXPECT_FALSE(arena.slots.IsCurrent(forged));
}

TEST(SlotAllocator, FullestExtentIsTakenFromFirstSoThatOthersEmpty) {
  Arena arena(1, 1);
  const uint32_t small = arena.Class(512 * kKiB);  // four slots an extent of 2 MiB
  std::vector<SlotRef> taken;
  for (int i = 0; i < 12; ++i) taken.push_back(arena.Take(small));
  for (const int i : {0, 1, 2, 4, 5, 8}) arena.slots.Free(taken[i]);  // free: 3, 2 and 1
  EXPECT_EQ(arena.Take(small).address, taken[8].address);
  const uint32_t next_page = arena.Take(small).address.page;
  EXPECT_TRUE(next_page == taken[4].address.page || next_page == taken[5].address.page);
}

TEST(SlotAllocator, EmptyExtentReturnsToItsSegment) {
  Arena arena(1, 1);
  const uint32_t small = arena.Class(64 * kKiB);
  const uint32_t whole = arena.Class(kSegmentBytes);
  const std::vector<SlotRef> taken = arena.Fill(small);
  EXPECT_EQ(arena.slots.Allocate(whole).code(), StatusCode::kNoSpace);
  for (const SlotRef& slot : taken) arena.slots.Free(slot);
  EXPECT_EQ(arena.slots.segment_state(0), SegmentState::kFree);
  EXPECT_TRUE(arena.slots.Allocate(whole).ok());
}

TEST(SlotAllocator, OwnersShareNoSegmentWhileOneIsFree) {
  Arena arena(3, 3);
  const uint32_t a = arena.Class(2 * kMiB, 1);
  const uint32_t b = arena.Class(2 * kMiB, 2);
  const uint32_t b_other_size = arena.Class(64 * kKiB, 2);
  std::set<uint32_t> segments_a, segments_b;
  for (int i = 0; i < 8; ++i) segments_a.insert(arena.Take(a).address.segment);
  for (int i = 0; i < 7; ++i) segments_b.insert(arena.Take(b).address.segment);
  segments_b.insert(arena.Take(b_other_size).address.segment);
  EXPECT_EQ(segments_a, std::set<uint32_t>{0});
  EXPECT_EQ(segments_b, std::set<uint32_t>{1});
  for (int i = 0; i < 4; ++i) arena.Take(a);
  EXPECT_EQ(arena.Take(b).address.segment, 2u) << "none is free: anywhere it fits";
}

TEST(SlotAllocator, LeftoverRunTakesAShorterExtent) {
  // 26 MiB extents of six slots leave 22 MiB of a segment: five more slots.
  Arena arena(1, 1, 256 * kMiB);
  EXPECT_EQ(arena.Fill(arena.Class(1098 * 4 * kKiB)).size(), 9u * 6 + 5);
}

TEST(SlotAllocator, DrainingSegmentGivesNoSlots) {
  Arena arena(2, 2);
  const uint32_t small = arena.Class(512 * kKiB);
  const SlotRef slot = arena.Take(small);
  arena.slots.BeginDrain(slot.address.segment);
  EXPECT_FALSE(arena.slots.IsDrained(slot.address.segment));
  for (const SlotRef& other : arena.Fill(small)) {
    EXPECT_NE(other.address.segment, slot.address.segment);
  }
  std::vector<SlotRef> left;
  arena.slots.SlotsInSegment(slot.address.segment, 0, UINT32_MAX, &left);
  EXPECT_EQ(left, std::vector<SlotRef>{slot});
  arena.slots.Free(slot);
  EXPECT_TRUE(arena.slots.IsDrained(slot.address.segment));
  arena.slots.CheckInvariants();
}

TEST(SlotAllocator, SlotsInASegmentComeSomeACall) {
  Arena arena(1, 1, 16 * kMiB);
  const std::vector<SlotRef> all = arena.Fill(arena.Class(64 * kKiB));
  ASSERT_GT(all.size(), 200u);
  EXPECT_EQ(arena.slots.slots_used_in(0), all.size());
  std::vector<SlotRef> listed;
  uint32_t chunk = 0;
  uint32_t calls = 0;
  do {
    const size_t listed_before = listed.size();
    chunk = arena.slots.SlotsInSegment(0, chunk, 40, &listed);
    EXPECT_LE(listed.size() - listed_before, 40u + 31) << "an extent more at most";
    ++calls;
  } while (chunk != 0);
  EXPECT_EQ(listed.size(), all.size());
  EXPECT_GE(calls, 4u);
}

TEST(SlotAllocator, AbsentSegmentGivesNoSlots) {
  Arena arena(2, 0);
  const uint32_t small = arena.Class(64 * kKiB);
  EXPECT_EQ(arena.slots.Allocate(small).code(), StatusCode::kNoSpace);
  arena.slots.SegmentPopulated(1);
  EXPECT_EQ(arena.Take(small).address.segment, 1u);
  EXPECT_EQ(arena.slots.segment_count(SegmentState::kAbsent), 1u);
}

TEST(SlotAllocator, FailedPunchGivesTheSegmentBack) {
  Arena arena(1, 1);
  const uint32_t small = arena.Class(64 * kKiB);
  arena.slots.BeginDrain(0);
  arena.slots.SetSegmentState(0, SegmentState::kRevoking);
  arena.slots.SetSegmentState(0, SegmentState::kPunching);
  EXPECT_EQ(arena.slots.usage().unassigned_bytes, 0u);
  arena.slots.SetSegmentState(0, SegmentState::kFree);
  EXPECT_EQ(arena.Fill(small).size(), kSegmentBytes / (64 * kKiB));
}

TEST(SlotAllocator, UsageAddsUpToThePopulatedBytes) {
  Arena arena(2, 1, 256 * kMiB);
  const uint32_t qwen = arena.Class(896 * kKiB);
  arena.Take(qwen);
  const SlotAllocator::Usage usage = arena.slots.usage();
  EXPECT_EQ(usage.used_bytes, 896 * kKiB);
  EXPECT_EQ(usage.free_slot_bytes, 8 * 896 * kKiB);
  EXPECT_EQ(usage.waste_bytes, 128 * kKiB);
  EXPECT_EQ(usage.unassigned_bytes, 248 * kMiB);
  EXPECT_EQ(usage.slots_used, 1u);
}

TEST(SlotAllocator, EmptiestRunMakesRoomAcrossNeighbours) {
  Arena arena(1, 1);
  const uint32_t small = arena.Class(512 * kKiB);
  const uint32_t large = arena.Class(6 * kMiB);
  const std::vector<SlotRef> taken = arena.Fill(small);
  // Extents 3, 4 and 5 keep one slot each, extent 1 keeps two.
  std::set<uint32_t> kept = {12, 17, 23, 4, 6};
  std::vector<SlotRef> left;
  for (uint32_t i = 0; i < taken.size(); ++i) {
    const uint32_t extent = i / 4;
    if ((extent >= 3 && extent <= 5) || extent == 1) {
      if (!kept.contains(i)) arena.slots.Free(taken[i]);
    }
  }
  ASSERT_EQ(arena.slots.Allocate(large).code(), StatusCode::kNoSpace);
  ASSERT_EQ(arena.slots.SlotsInEmptiestExtent(large, &left), 6 * kMiB);
  EXPECT_EQ(left, (std::vector<SlotRef>{taken[12], taken[17], taken[23]}));
  for (const SlotRef& slot : left) arena.slots.Free(slot);
  EXPECT_EQ(OffsetBytes(arena.slots.Allocate(large).value()), 6 * kMiB);
}

TEST(SlotAllocator, RunHeldByAWriterOrAFenceIsNotAdvised) {
  Arena arena(1, 1, 4 * kMiB);
  const uint32_t small = arena.Class(512 * kKiB);
  const uint32_t large = arena.Class(2 * kMiB);
  const std::vector<SlotRef> taken = arena.Fill(small);
  for (const int i : {1, 2, 3, 7}) arena.slots.Free(taken[i]);
  std::vector<SlotRef> left;
  ASSERT_EQ(arena.slots.SlotsInEmptiestExtent(large, &left), 2 * kMiB);
  EXPECT_EQ(left, std::vector<SlotRef>{taken[0]});
  arena.slots.row(taken[0]).state = SlotState::kFenced;
  left.clear();
  ASSERT_EQ(arena.slots.SlotsInEmptiestExtent(large, &left), 2 * kMiB);
  EXPECT_EQ(left, (std::vector<SlotRef>{taken[4], taken[5], taken[6]}));
  arena.slots.row(taken[4]).state = SlotState::kReserved;
  left.clear();
  EXPECT_EQ(arena.slots.SlotsInEmptiestExtent(large, &left), 0u);
  EXPECT_TRUE(left.empty());
}

TEST(SlotAllocatorDeath, FreeingTwiceStopsTheDaemon) {
  Arena arena(1, 1);
  const SlotRef slot = arena.Take(arena.Class(64 * kKiB));
  arena.slots.Free(slot);
  EXPECT_DEATH(arena.slots.Free(slot), "only the present use");
}

}  // namespace
}  // namespace terrace
