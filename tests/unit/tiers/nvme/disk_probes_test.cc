// A disk that is off: when it is tried, with what, and what brings it back.
#include "tiers/nvme/disk_probes.h"

#include <algorithm>

#include "unit/tiers/nvme/slab_parts_fixture.h"

namespace terrace {
namespace {

using Ops = std::vector<DiskOp>;

class DiskProbesTest : public SlabPartsTest {
 protected:
  void OnRequestDone(const NvmeRequest& request, Status status) override {
    if (request.kind == NvmeRequestKind::kProbe) probes_.OnProbeDone(request, status);
  }
  void BeginProbe() {
    now_us_ += kProbeIntervalUs;
    probes_.BeginDue();
  }
  // A write and a sync that are answered well: the read is asked.
  std::vector<std::byte> AnswerUntilRead() {
    const std::vector<std::byte> written = near_.bytes.at(0);
    near_.Answer();
    near_.Answer();
    return written;
  }
  void AnswerRead(const std::vector<std::byte>& word) {
    std::ranges::copy(word, near_.asked.at(0).into.begin() + kSlabProbeOffsetBytes);
    near_.Answer();
  }

  SlabSyncs syncs_{1000, {disks_, slabs_, entries_, erasures_, lifecycle_, reports_}};
  DiskProbes probes_{[this] { return ++random_; }, {disks_, slabs_, lifecycle_, syncs_, reports_}};
};

TEST_F(DiskProbesTest, ADiskThatIsOnIsNotTried) {
  AddOpen(kLarge);
  BeginProbe();
  EXPECT_TRUE(near_.asked.empty());
}

TEST_F(DiskProbesTest, AProbeAnIntervalAndOneAtATime) {
  AddOpen(kLarge);
  SwitchOff(0);
  now_us_ += kProbeIntervalUs - 1;
  probes_.BeginDue();
  EXPECT_TRUE(near_.asked.empty()) << "too early";
  ++now_us_;
  probes_.BeginDue();
  EXPECT_EQ(near_.asked.size(), 1u);
  BeginProbe();
  EXPECT_EQ(near_.asked.size(), 1u) << "one is under way";
  near_.Answer(kDriveFails);
  EXPECT_FALSE(disks_.is_on(0));
  probes_.BeginDue();
  EXPECT_EQ(near_.asked.size(), 1u) << "its turn had come meanwhile";
  near_.Answer(kDriveFails);
  probes_.BeginDue();
  EXPECT_TRUE(near_.asked.empty());
  BeginProbe();
  EXPECT_EQ(near_.asked.size(), 1u);
}

TEST_F(DiskProbesTest, AWordThatComesBackFromTheDriveBringsTheDiskBack) {
  const NvmeSlab& slab = AddOpen(kLarge);
  SwitchOff(0);
  BeginProbe();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  EXPECT_EQ(near_.asked[0].file, slab.file);
  EXPECT_EQ(near_.asked[0].offset_bytes, kSlabProbeOffsetBytes) << "no entry, no superblock";
  EXPECT_EQ(near_.bytes[0].size(), kSlabProbeBytes);
  const std::vector<std::byte> word = near_.bytes[0];
  near_.Answer();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync}) << "the page cache proves nothing";
  near_.Answer();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kRead});
  EXPECT_FALSE(disks_.is_on(0));
  AnswerRead(word);
  EXPECT_TRUE(disks_.is_on(0));
  EXPECT_EQ(rooms_, 1);
}

TEST_F(DiskProbesTest, AnythingElseThanTheWordKeepsTheDiskOff) {
  AddOpen(kLarge);
  SwitchOff(0);
  BeginProbe();
  std::vector<std::byte> word = AnswerUntilRead();
  word.back() ^= std::byte{1};
  AnswerRead(word);
  EXPECT_FALSE(disks_.is_on(0));
  EXPECT_EQ(rooms_, 0);
  BeginProbe();
  EXPECT_NE(near_.bytes.at(0), word) << "an old word proves nothing";
  AnswerRead(AnswerUntilRead());
  EXPECT_TRUE(disks_.is_on(0));
}

TEST_F(DiskProbesTest, AFailedSyncOfAProbeIsEverybodysFailedSync) {
  NvmeSlab& slab = AddOpen(kLarge);
  const uint32_t slot = StoreBlock(slab, 7);
  near_.Answer();
  SwitchOff(0);
  BeginProbe();
  near_.Answer();
  near_.Answer(kDriveFails);
  EXPECT_EQ(slab.slots[slot].state, SlabSlotState::kLost);
  EXPECT_FALSE(disks_.is_on(0));
}

TEST_F(DiskProbesTest, AFileThatIsGoneIsGivenUpAndNotTriedAgain) {
  NvmeSlab& gone = AddOpen(kLarge);
  const NvmeSlab& other = AddOpen(kLarge);
  SwitchOff(0);
  BeginProbe();
  near_.Answer();
  near_.Answer(kFileIsGone);
  EXPECT_TRUE(gone.is_gone);
  EXPECT_FALSE(disks_.is_on(0)) << "that says nothing of the drive";
  BeginProbe();
  ASSERT_EQ(near_.asked.size(), 1u);
  EXPECT_EQ(near_.asked[0].file, other.file);
}

TEST_F(DiskProbesTest, WhereNothingCanBeTriedMakingASlabWillBeTheProbe) {
  slabs_.Add(0, 0, near_.NewFile(), kSlabBytes);  // being made
  AddOpen(kLarge, 1);
  SwitchOff(0);
  EXPECT_FALSE(disks_.is_on(0));
  BeginProbe();
  EXPECT_TRUE(near_.asked.empty() && far_.asked.empty());
  EXPECT_TRUE(disks_.is_on(0));
  EXPECT_EQ(rooms_, 1);
}

TEST_F(DiskProbesTest, AProbeThatTheQueueRefusesIsOver) {
  AddOpen(kLarge);
  SwitchOff(0);
  while (disks_.Submit({.kind = NvmeRequestKind::kRead, .disk = 0}, {}).ok()) {
  }
  BeginProbe();
  EXPECT_FALSE(disks_.is_on(0));
  near_.asked.clear();
  near_.bytes.clear();
  BeginProbe();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
}

}  // namespace
}  // namespace terrace
