#include "tiers/nvme/slab_set.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr uint64_t kSlabBytes = kMiB;
constexpr uint64_t kSlotBytes = 64 * kKiB;

class SlabSetTest : public testing::Test {
 protected:
  NvmeSlab& Add(uint32_t index, uint32_t disk = 0) {
    NvmeSlab& slab = slabs_.Add(index, disk, index, kSlabBytes);
    slab.TakeShape(SlabGeometry::Of({kSlotBytes, 1}, kSlabBytes).value(), {index, 1});
    return slab;
  }
  SlabSet slabs_{2};
};

TEST_F(SlabSetTest, NumbersOfSlabsAndOfFilesLeftAloneAreNotGivenAgain) {
  Add(0);
  slabs_.LeaveAlone(1, 0, 500);
  Add(2);
  EXPECT_EQ(slabs_.FreeIndex(), 3u);
  slabs_.Remove(0);
  EXPECT_EQ(slabs_.FreeIndex(), 0u);
  EXPECT_EQ(slabs_.At(1), nullptr);
}

TEST_F(SlabSetTest, BytesOfFilesCountUntilTheyAreGone) {
  Add(0, 0);
  NvmeSlab& gone = Add(1, 1);
  slabs_.LeaveAlone(2, 1, 500);
  EXPECT_EQ(slabs_.file_bytes(1), kSlabBytes + 500);
  EXPECT_TRUE(slabs_.MarkGone(gone));
  EXPECT_FALSE(slabs_.MarkGone(gone));
  EXPECT_EQ(slabs_.file_bytes(1), 500u);
  slabs_.Remove(1);
  slabs_.Remove(0);
  EXPECT_EQ(slabs_.file_bytes_total(), 500u);
}

TEST_F(SlabSetTest, AnExtentIsFoundWhileItsOwnerHasTheSlot) {
  NvmeSlab& slab = Add(3);
  const uint32_t slot = slab.slots.Take();
  const Extent extent{.position = slot,
                      .length_bytes = kSlotBytes,
                      .shard = 3,
                      .generation = slab.slots[slot].generation};
  EXPECT_EQ(slabs_.Find(extent), &slab);
  Extent other = extent;
  other.length_bytes = 2 * kSlotBytes;
  EXPECT_EQ(slabs_.Find(other), nullptr);
  other = extent;
  other.position = slab.slots.count();
  EXPECT_EQ(slabs_.Find(other), nullptr);
  other = extent;
  other.shard = 9;
  EXPECT_EQ(slabs_.Find(other), nullptr);
  slab.slots.EndGeneration(slot);
  EXPECT_EQ(slabs_.Find(extent), nullptr) << "it was freed";
}

TEST_F(SlabSetTest, OtherThreadsSeeWhatIsPublishedOnly) {
  NvmeSlab& slab = Add(3, 1);
  EXPECT_FALSE(slabs_.FindPlace(3));
  slabs_.Publish(slab);
  ASSERT_TRUE(slabs_.FindPlace(3));
  EXPECT_EQ(slabs_.FindPlace(3)->disk, 1u);
  EXPECT_EQ(slabs_.FindPlace(3)->uuid, slab.uuid);
  slabs_.Remove(3);
  EXPECT_FALSE(slabs_.FindPlace(3));
}

TEST_F(SlabSetTest, TwoSlabsNeverHaveOneNumber) {
  Add(0);
  EXPECT_DEATH(slabs_.Add(0, 1, 9, kSlabBytes), "one number");
}

}  // namespace
}  // namespace terrace
