#include "tiers/nvme/shape_classes.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "unit/tiers/nvme/fake_disk.h"

namespace terrace {
namespace {

constexpr uint64_t kSlabBytes = kMiB;
constexpr SlabShape kLarge{64 * kKiB, 1};  // 15 slots a slab
constexpr SlabShape kSmall{4 * kKiB, 1};

class ShapeClassesTest : public testing::Test, public DiskListener {
 protected:
  void OnDiskDone(uint64_t tag, Status status) override { (void)disks_.Finish(tag, status); }
  NvmeSlab& AddOpen(const SlabShape& shape, uint32_t disk = 0) {
    const uint32_t index = slabs_.FreeIndex();
    NvmeSlab& slab = slabs_.Add(index, disk, index, kSlabBytes);
    slab.TakeShape(classes_.FindOrMake(shape).value()->geometry(), {index, 1});
    classes_.Open(slab);
    return slab;
  }
  ShapeClass& Class(const SlabShape& shape) { return *classes_.FindOrMake(shape).value(); }
  void Load(uint32_t disk, uint64_t length_bytes) {
    ASSERT_TRUE(
        disks_
            .Submit({.kind = NvmeRequestKind::kRead, .disk = disk, .length_bytes = length_bytes},
                    {})
            .ok());
  }
  void SwitchOff(FakeDisk& fake, uint32_t disk) {
    ASSERT_TRUE(disks_.Submit({.kind = NvmeRequestKind::kSync, .disk = disk}, {}).ok());
    fake.Answer(Status(StatusCode::kIo, "the drive", EIO));
  }

  FakeDisk near_;
  FakeDisk far_;
  NvmeDisks disks_{{.disks = {&near_, &far_},
                    .now_us = [] { return uint64_t{1}; },
                    .health = {.failures_max = 1},
                    .stuck_us = 1000},
                   this};
  SlabSet slabs_{2};
  ShapeClasses classes_{disks_, slabs_, kSlabBytes};
};

TEST_F(ShapeClassesTest, AShapeThatNoSlabHoldsIsInvalid) {
  EXPECT_EQ(classes_.FindOrMake({kSlabBytes, 1}).code(), StatusCode::kInvalid);
  EXPECT_EQ(classes_.Find(kLarge), nullptr);
  const ShapeClass* const made = classes_.FindOrMake(kLarge).value();
  EXPECT_EQ(classes_.Find(kLarge), made);
}

TEST_F(ShapeClassesTest, SlabsOfOneDiskTakeTurnsUntilTheyAreFull) {
  NvmeSlab& first = AddOpen(kLarge);
  NvmeSlab& second = AddOpen(kLarge);
  std::map<uint32_t, uint32_t> taken;
  NvmeSlab* last = nullptr;
  while (NvmeSlab* slab = classes_.Pick(Class(kLarge))) {
    if (taken[slab->index] < 14) {
      EXPECT_NE(slab, last);
    }
    (void)classes_.Take(*slab);
    ++taken[slab->index];
    last = slab;
  }
  EXPECT_EQ(taken[first.index], first.slots.count());
  EXPECT_EQ(taken[second.index], second.slots.count());
}

TEST_F(ShapeClassesTest, TheDiskWithTheLeastBytesInFlightGivesTheSlot) {
  AddOpen(kLarge, 0);
  NvmeSlab& far = AddOpen(kLarge, 1);
  Load(0, 100);
  EXPECT_EQ(classes_.Pick(Class(kLarge)), &far);
  EXPECT_EQ(classes_.Pick(Class(kLarge)), &far);
  SwitchOff(far_, 1);
  EXPECT_NE(classes_.Pick(Class(kLarge)), &far) << "off";
}

TEST_F(ShapeClassesTest, AFreedSlotOpensAFullSlabAgain) {
  NvmeSlab& slab = AddOpen(kLarge);
  while (classes_.Pick(Class(kLarge)) != nullptr) (void)classes_.Take(slab);
  classes_.Erase(slab, 4);
  EXPECT_TRUE(classes_.IsRoomComing(Class(kLarge)));
  EXPECT_EQ(classes_.Pick(Class(kLarge)), nullptr) << "its entry does not say so yet";
  classes_.Free(slab, 4);
  EXPECT_FALSE(classes_.IsRoomComing(Class(kLarge)));
  ASSERT_EQ(classes_.Pick(Class(kLarge)), &slab);
  EXPECT_EQ(classes_.Take(slab), 4u);
}

TEST_F(ShapeClassesTest, AClosedSlabGivesNothingAndCountsNothing) {
  NvmeSlab& slab = AddOpen(kLarge);
  (void)classes_.Take(slab);
  classes_.Close(slab);
  slab.phase = SlabPhase::kRetiring;
  EXPECT_EQ(classes_.Pick(Class(kLarge)), nullptr);
  EXPECT_EQ(Class(kLarge).slab_count(), 0u);
  classes_.Free(slab, 0);
  EXPECT_EQ(classes_.Pick(Class(kLarge)), nullptr);
}

TEST_F(ShapeClassesTest, ShortBelowAQuarterOfASlabUnlessOneIsComing) {
  NvmeSlab& slab = AddOpen(kLarge);
  while (slab.slots.free_count() > 4) (void)classes_.Take(slab);
  EXPECT_FALSE(classes_.IsShort(Class(kLarge)));
  (void)classes_.Take(slab);
  EXPECT_TRUE(classes_.IsShort(Class(kLarge)));
  classes_.BeginComing(kLarge, 1);
  EXPECT_FALSE(classes_.IsShort(Class(kLarge)));
  EXPECT_TRUE(classes_.IsRoomComing(Class(kLarge)));
  classes_.EndComing(kLarge, 1);
  EXPECT_TRUE(classes_.IsNarrow(Class(kLarge))) << "one slab, two disks";
}

TEST_F(ShapeClassesTest, APoorShapeGetsTheEmptiestSlabOfARicherOne) {
  for (int slab = 0; slab < 3; ++slab) AddOpen(kLarge);
  (void)classes_.Take(*classes_.Pick(Class(kLarge)));
  NvmeSlab* const taken = slabs_.At(0);
  EXPECT_EQ(taken->slots.owned_count(), 1u);
  EXPECT_TRUE(classes_.IsPoor(Class(kSmall)));
  EXPECT_FALSE(classes_.IsPoor(Class(kLarge)));
  const NvmeSlab* const empty = classes_.EmptiestOfOthers(Class(kSmall));
  ASSERT_NE(empty, nullptr);
  EXPECT_NE(empty, taken);
  EXPECT_EQ(classes_.EmptiestOfOthers(Class(kLarge)), nullptr);
}

TEST_F(ShapeClassesTest, SlotsComeFromTheSlabWhoseTurnItIs) {
  NvmeSlab& first = AddOpen(kLarge);
  NvmeSlab& second = AddOpen(kLarge);
  ASSERT_EQ(classes_.Pick(Class(kLarge)), &first);
  EXPECT_DEATH((void)classes_.Take(second), "whose turn");
  EXPECT_DEATH(classes_.Open(first), "opened once");
  EXPECT_DEATH(classes_.EndComing(kLarge, 0), "has come");
}

}  // namespace
}  // namespace terrace
