// Suspect slots: filled, synced, read back, and what is made of the answers.
#include "tiers/nvme/slot_trials.h"

#include <algorithm>

#include "unit/tiers/nvme/slab_parts_fixture.h"

namespace terrace {
namespace {

using Ops = std::vector<DiskOp>;
using Answers = std::vector<bool>;
using Bytes = std::vector<std::byte>;

class SlotTrialsTest : public SlabPartsTest {
 protected:
  void OnRequestDone(const NvmeRequest& request, Status status) override {
    if (request.kind == NvmeRequestKind::kTrial) trials_.OnTrialDone(request, status);
  }
  void OnSuspectSettled(NvmeSlab& slab, uint32_t slot) override { trials_.Add(slab, slot); }

  // A block whose bytes did not verify; the trial begins.
  uint32_t StoreAndSuspect() {
    const uint32_t slot = StoreBlock(slab_, 7);
    near_.Answer();
    slab_.slots.EndGeneration(slot);
    entries_.Drop(slab_, slot);
    trials_.Suspect(slab_, slot);
    entries_.Write();
    near_.Answer();
    return slot;
  }
  uint32_t Quarantined() {
    const uint32_t slot = slab_.slots.count() - 1;
    slab_.slots.SetState(slot, SlabSlotState::kQuarantined);
    return slot;
  }
  void Try(uint32_t slot) {
    trials_.TryQuarantined(slab_, slot, [this](bool is_free) { answers_.push_back(is_free); });
    entries_.Write();
  }
  // Answers as a drive that keeps what it is given, until something else is asked or nothing is.
  Ops GoOn() {
    Ops ops;
    while (!near_.asked.empty()) {
      const DiskRequest request = near_.asked[0];
      if (request.op == DiskOp::kWriteTable) break;
      ops.push_back(request.op);
      if (request.op == DiskOp::kWrite) kept_[request.offset_bytes] = near_.bytes[0];
      if (request.op == DiskOp::kRead) {
        std::ranges::copy(kept_.at(request.offset_bytes), request.into.begin());
      }
      near_.Answer();
    }
    return ops;
  }

  SlabSyncs syncs_{1000, {disks_, slabs_, entries_, erasures_, lifecycle_, reports_}};
  SlotTrials trials_{[this] { return ++random_; },
                     {disks_, slabs_, classes_, entries_, lifecycle_, syncs_, reports_}};
  NvmeSlab& slab_ = AddOpen(kLarge);
  std::map<uint64_t, Bytes> kept_;  // by offset
  Answers answers_;
};

TEST_F(SlotTrialsTest, TheEntrySaysFreeBeforeTheSlotIsOverwritten) {
  const uint32_t slot = StoreBlock(slab_, 7);
  near_.Answer();
  slab_.slots.EndGeneration(slot);
  entries_.Drop(slab_, slot);
  trials_.Suspect(slab_, slot);
  trials_.Step();
  EXPECT_TRUE(near_.asked.empty());
  entries_.Write();
  trials_.Step();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  EXPECT_EQ(EntryOf(slab_, slot, near_.bytes[0]).state, SlabEntryState::kFree);
  near_.Answer();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kWrite});
}

TEST_F(SlotTrialsTest, AllOfTheSlotIsWrittenAndSyncedBeforeItIsReadBack) {
  reports_.WantRoom();
  const uint32_t slot = StoreAndSuspect();
  const uint64_t begin_bytes = slab_.geometry.PayloadOffsetBytes(slot);
  EXPECT_EQ(near_.asked.at(0).offset_bytes, begin_bytes);
  EXPECT_EQ(near_.bytes[0].size(), kTrialChunkBytes) << "one turn's part";
  EXPECT_EQ(GoOn(),
            (Ops{DiskOp::kWrite, DiskOp::kWrite, DiskOp::kSync, DiskOp::kRead, DiskOp::kRead}));
  EXPECT_EQ(kept_.size(), 2u);
  EXPECT_NE(kept_.at(begin_bytes), kept_.at(begin_bytes + kTrialChunkBytes));
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kFree);
  EXPECT_EQ(trials_.recovered_count(), 1u);
  EXPECT_EQ(rooms_, 1);
}

TEST_F(SlotTrialsTest, EachTrialWritesOtherBytes) {
  StoreAndSuspect();
  const Bytes first = near_.bytes.at(0);
  GoOn();
  Try(Quarantined());
  near_.Answer();
  EXPECT_NE(near_.bytes.at(0), first) << "what was kept of an old trial proves nothing";
}

TEST_F(SlotTrialsTest, OneWrongByteInTheLastSectorIsQuarantine) {
  const uint32_t slot = StoreAndSuspect();
  while (near_.ops() != Ops{DiskOp::kRead} ||
         near_.asked[0].offset_bytes == slab_.geometry.PayloadOffsetBytes(slot)) {
    const DiskRequest request = near_.asked.at(0);
    if (request.op == DiskOp::kWrite) kept_[request.offset_bytes] = near_.bytes[0];
    if (request.op == DiskOp::kRead) {
      std::ranges::copy(kept_.at(request.offset_bytes), request.into.begin());
    }
    near_.Answer();
  }
  const DiskRequest last = near_.asked[0];
  std::ranges::copy(kept_.at(last.offset_bytes), last.into.begin());
  last.into.back() ^= std::byte{1};
  near_.Answer();
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kQuarantined);
  EXPECT_EQ(trials_.recovered_count(), 0u);
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  EXPECT_EQ(EntryOf(slab_, slot, near_.bytes[0]).state, SlabEntryState::kQuarantined);
}

TEST_F(SlotTrialsTest, ADriveThatRefusesAStepIsBadThere) {
  for (size_t steps = 0; steps < 5; ++steps) {
    const uint32_t slot = StoreAndSuspect();
    for (size_t i = 0; i < steps; ++i) {
      const DiskRequest request = near_.asked.at(0);
      if (request.op == DiskOp::kWrite) kept_[request.offset_bytes] = near_.bytes[0];
      if (request.op == DiskOp::kRead) {
        std::ranges::copy(kept_.at(request.offset_bytes), request.into.begin());
      }
      near_.Answer();
    }
    near_.Answer(kDriveFails);
    EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kQuarantined) << steps;
    while (!near_.asked.empty()) near_.Answer();
  }
}

TEST_F(SlotTrialsTest, NeitherAFullFileSystemNorAStepThatNeverBeganIsAVerdict) {
  const uint32_t slot = StoreAndSuspect();
  for (const Status status :
       {Status(StatusCode::kIo, "full", ENOSPC), Status(StatusCode::kBusy, "given up")}) {
    near_.Answer(status);
    EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kSuspect);
    EXPECT_TRUE(near_.asked.empty()) << "not at once";
    trials_.Step();
    ASSERT_EQ(near_.ops(), Ops{DiskOp::kWrite}) << "from the start";
  }
  GoOn();
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kFree);
}

TEST_F(SlotTrialsTest, ATrialDuringWhichTheDiskGoesOffIsRepeated) {
  const uint32_t slot = StoreAndSuspect();
  SwitchOff(0);
  near_.Answer(kDriveFails);
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kSuspect);
  trials_.Step();
  EXPECT_TRUE(near_.asked.empty());
  disks_.OnProbe(0, Status::Ok());
  trials_.Step();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kWrite});
}

TEST_F(SlotTrialsTest, AFailedSyncOfATrialIsEverybodysFailedSync) {
  const uint32_t kept = StoreBlock(slab_, 1);
  near_.Answer();
  StoreAndSuspect();
  near_.Answer();
  near_.Answer();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync});
  near_.Answer(kDriveFails);
  EXPECT_EQ(slab_.slots[kept].state, SlabSlotState::kLost) << "the kernel says it once";
}

TEST_F(SlotTrialsTest, ATrialOfAFileThatIsGoneIsOver) {
  const uint32_t slot = StoreAndSuspect();
  lifecycle_.GiveUp(slab_);
  near_.Answer();
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kQuarantined);
}

TEST_F(SlotTrialsTest, OneTrialAtATimeInTheOrderOfSuspicion) {
  const uint32_t first = StoreAndSuspect();
  const uint32_t second = StoreBlock(slab_, 8);
  near_.AnswerAt(1);
  slab_.slots.EndGeneration(second);
  entries_.Drop(slab_, second);
  trials_.Suspect(slab_, second);
  entries_.Write();
  near_.AnswerAt(1);
  EXPECT_EQ(near_.asked.size(), 1u);
  GoOn();
  EXPECT_EQ(slab_.slots[first].state, SlabSlotState::kFree);
  EXPECT_EQ(slab_.slots[second].state, SlabSlotState::kFree);
  EXPECT_EQ(trials_.recovered_count(), 2u);
}

TEST_F(SlotTrialsTest, WhoAskedForATrialIsToldOnceHowItEnded) {
  const uint32_t slot = Quarantined();
  const uint32_t generation = slab_.slots[slot].generation;
  Try(slot);
  EXPECT_GT(slab_.slots[slot].generation, generation);
  near_.Answer();
  EXPECT_TRUE(answers_.empty());
  GoOn();
  EXPECT_EQ(answers_, Answers{true});
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kFree);
  trials_.Step();
  trials_.GiveUpWaiters();
  EXPECT_EQ(answers_, Answers{true});
}

TEST_F(SlotTrialsTest, WhoAskedDoesNotWaitForADiskThatIsOffAndTheTrialDoes) {
  const uint32_t slot = Quarantined();
  SwitchOff(0);
  Try(slot);
  trials_.GiveUpWaiters();
  EXPECT_EQ(answers_, Answers{false});
  disks_.OnProbe(0, Status::Ok());
  entries_.Write();
  near_.Answer();
  GoOn();
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kFree);
  EXPECT_EQ(answers_, Answers{false});
}

TEST_F(SlotTrialsTest, NobodysBytesAreTried) {
  const uint32_t slot = StoreBlock(slab_, 7);
  EXPECT_DEATH(trials_.Suspect(slab_, slot), "nobody's bytes");
  EXPECT_DEATH(trials_.TryQuarantined(slab_, slot, [](bool) {}), "out of use");
}

}  // namespace
}  // namespace terrace
