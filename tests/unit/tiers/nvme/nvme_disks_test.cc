#include "tiers/nvme/nvme_disks.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

#include "unit/tiers/nvme/fake_disk.h"

namespace terrace {
namespace {

constexpr uint64_t kStuckUs = 1000;

class NvmeDisksTest : public testing::Test, public DiskListener {
 protected:
  NvmeDisksTest() {
    disks_ = std::make_unique<NvmeDisks>(
        NvmeDisks::Options{.disks = {&near_, &far_},
                           .now_us = [this] { return now_us_; },
                           .health = {.failures_max = 2, .probe_interval_us = 100},
                           .stuck_us = kStuckUs},
        this);
  }
  void OnDiskDone(uint64_t tag, Status status) override {
    done_.push_back(disks_->Finish(tag, status));
  }
  Status Submit(NvmeRequestKind kind, uint32_t disk = 0, uint64_t length_bytes = 0,
                const DiskRequest& request = {}) {
    return disks_->Submit({.kind = kind, .disk = disk, .slab = 4, .length_bytes = length_bytes},
                          request);
  }

  uint64_t now_us_ = 1;
  FakeDisk near_{2};
  FakeDisk far_{2};
  std::unique_ptr<NvmeDisks> disks_;
  std::vector<NvmeRequest> done_;
};

TEST_F(NvmeDisksTest, AnAnswerFindsItsRequestWhateverTheOrder) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 100).ok());
  ASSERT_TRUE(Submit(NvmeRequestKind::kSync).ok());
  near_.AnswerAt(1);
  near_.Answer();
  ASSERT_EQ(done_.size(), 2u);
  EXPECT_EQ(done_[0].kind, NvmeRequestKind::kSync);
  EXPECT_EQ(done_[1].length_bytes, 100u);
  EXPECT_FALSE(disks_->is_any_in_flight());
}

TEST_F(NvmeDisksTest, TransfersAloneCountTheirBytes) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kWrite, 1, 70).ok());
  ASSERT_TRUE(Submit(NvmeRequestKind::kTrial, 1, 30).ok());
  EXPECT_EQ(disks_->transfer_bytes(1), 70u);
  EXPECT_EQ(disks_->transfers_in_flight(), 1u);
  far_.Answer();
  EXPECT_EQ(disks_->transfer_bytes(1), 0u);
  EXPECT_TRUE(disks_->is_any_in_flight()) << "the trial";
}

TEST_F(NvmeDisksTest, AFullQueueTakesNothingAndCountsNothing) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 10).ok());
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 10).ok());
  EXPECT_TRUE(disks_->is_queue_full(0));
  EXPECT_EQ(Submit(NvmeRequestKind::kRead, 0, 10).code(), StatusCode::kBusy);
  EXPECT_EQ(disks_->transfer_bytes(0), 20u);
  EXPECT_FALSE(disks_->is_queue_full(1));
}

TEST_F(NvmeDisksTest, FailuresInARowSwitchOneDiskOffAndAProbeOnAgain) {
  const Status failed(StatusCode::kIo, "the drive", EIO);
  for (int failure = 0; failure < 2; ++failure) {
    ASSERT_TRUE(Submit(NvmeRequestKind::kEntry).ok());
    near_.Answer(failed);
  }
  EXPECT_FALSE(disks_->is_on(0));
  EXPECT_TRUE(disks_->is_any_on());
  EXPECT_FALSE(disks_->TakeProbeTurn(0));
  now_us_ += 100;
  EXPECT_TRUE(disks_->TakeProbeTurn(0));
  disks_->OnProbe(0, Status::Ok());
  EXPECT_TRUE(disks_->is_on(0));
}

TEST_F(NvmeDisksTest, AFullFileSystemAndAProbeAreNoFailures) {
  for (int failure = 0; failure < 4; ++failure) {
    ASSERT_TRUE(Submit(NvmeRequestKind::kSlabStep).ok());
    near_.Answer(Status(StatusCode::kIo, "full", ENOSPC));
    ASSERT_TRUE(Submit(NvmeRequestKind::kProbe).ok());
    near_.Answer(Status(StatusCode::kIo, "the drive", EIO));
  }
  EXPECT_TRUE(disks_->is_on(0));
}

// PROMISE: T14 why it is off
TEST_F(NvmeDisksTest, ADiskThatIsOffSaysWhatFailedHowOftenAndWithWhat) {
  EXPECT_TRUE(disks_->Troubles().empty());
  for (int failure = 0; failure < 2; ++failure) {
    ASSERT_TRUE(Submit(NvmeRequestKind::kWrite, 1, 10, {.op = DiskOp::kWrite}).ok());
    far_.Answer(Status(StatusCode::kIo, "the drive", EROFS));
  }
  ASSERT_EQ(disks_->Troubles().size(), 1u);
  DriveTrouble trouble = disks_->Troubles()[0];
  EXPECT_EQ(trouble.path, "/fake");
  EXPECT_EQ(trouble.drive, 1u);
  EXPECT_TRUE(trouble.is_off);
  EXPECT_STREQ(trouble.operation, "write");
  EXPECT_EQ(trouble.error, EROFS);
  EXPECT_EQ(trouble.failures_in_row, 2u);
  EXPECT_EQ(trouble.off_count, 1u);
  disks_->OnProbe(1, Status(StatusCode::kIo, "still", EIO));
  EXPECT_EQ(disks_->Troubles()[0].probe_error, EIO);
  disks_->OnProbe(1, Status::Ok());
  EXPECT_TRUE(disks_->Troubles().empty());
}

// A probe makes none, and says that all is well.
TEST_F(NvmeDisksTest, ADiskThatMakesNoFilesIsToldUntilItHasMadeOne) {
  const auto make = [&](Status status) {
    ASSERT_TRUE(Submit(NvmeRequestKind::kSlabStep, 1, 0, {.op = DiskOp::kCreate}).ok());
    far_.Answer(status);
  };
  for (int failure = 0; failure < 2; ++failure) {
    EXPECT_TRUE(disks_->Troubles().empty());
    make(Status(StatusCode::kIo, "no directory", ENOENT));
  }
  EXPECT_FALSE(disks_->is_on(1));
  disks_->OnProbe(1, Status::Ok());
  EXPECT_TRUE(disks_->is_on(1));
  ASSERT_EQ(disks_->Troubles().size(), 1u);
  EXPECT_TRUE(disks_->Troubles()[0].is_off);
  EXPECT_TRUE(disks_->Troubles()[0].makes_no_files);
  EXPECT_EQ(disks_->Troubles()[0].error, ENOENT);
  EXPECT_EQ(disks_->Troubles()[0].failures_in_row, 2u);
  make(Status::Ok());
  EXPECT_TRUE(disks_->Troubles().empty());
}

TEST_F(NvmeDisksTest, AFileThatCannotBeMadeAmongOtherFailuresIsNoneThatMakesNoFiles) {
  const Status failed(StatusCode::kIo, "the drive", EIO);
  ASSERT_TRUE(Submit(NvmeRequestKind::kWrite, 1, 10, {.op = DiskOp::kWrite}).ok());
  far_.Answer(failed);
  ASSERT_TRUE(Submit(NvmeRequestKind::kSlabStep, 1, 0, {.op = DiskOp::kCreate}).ok());
  far_.Answer(failed);
  ASSERT_EQ(disks_->Troubles().size(), 1u);
  EXPECT_FALSE(disks_->Troubles()[0].makes_no_files);
  disks_->OnProbe(1, Status::Ok());
  EXPECT_TRUE(disks_->Troubles().empty()) << "no file is wanted there, so none will be made";
}

TEST_F(NvmeDisksTest, ADiskOfWhichFilesWereRemovedIsLookedAtOnceForEach) {
  EXPECT_FALSE(disks_->TakeRemovals(0));
  near_.removed_count = 2;
  EXPECT_FALSE(disks_->TakeRemovals(1));
  EXPECT_TRUE(disks_->TakeRemovals(0));
  EXPECT_FALSE(disks_->TakeRemovals(0));
  near_.removed_count = 1;  // one of them has gone for good
  EXPECT_FALSE(disks_->TakeRemovals(0));
  near_.removed_count = 2;
  EXPECT_TRUE(disks_->TakeRemovals(0));
}

TEST_F(NvmeDisksTest, ADiskThatIsNotWhereItLayIsTold) {
  disks_.reset();
  NvmeDisks disks({.disks = {&near_, &far_},
                   .lost_mounts = {"", "/mnt/far"},
                   .now_us = [this] { return now_us_; },
                   .health = {},
                   .stuck_us = kStuckUs},
                  this);
  ASSERT_EQ(disks.Troubles().size(), 1u);
  EXPECT_EQ(disks.Troubles()[0].drive, 1u);
  EXPECT_EQ(disks.Troubles()[0].lost_mount, "/mnt/far");
}

TEST_F(NvmeDisksTest, AFullDiskIsToldUntilAFileOfItsSizeFitsOrIsMade) {
  const auto make = [&](Status status) {
    ASSERT_TRUE(
        Submit(NvmeRequestKind::kSlabStep, 0, 0, {.op = DiskOp::kCreate, .length_bytes = 1000})
            .ok());
    near_.Answer(status);
  };
  const Status full(StatusCode::kIo, "full", ENOSPC);
  near_.free_bytes = 999;
  make(full);
  ASSERT_EQ(disks_->Troubles().size(), 1u);
  EXPECT_FALSE(disks_->Troubles()[0].is_off);
  EXPECT_EQ(disks_->Troubles()[0].error, ENOSPC);
  disks_->LookForRoom();
  EXPECT_FALSE(disks_->Troubles().empty());
  near_.free_bytes = 1000;
  disks_->LookForRoom();
  EXPECT_TRUE(disks_->Troubles().empty()) << "it heals though nobody makes files now";
  make(full);  // a quota: there is room, and not for us
  disks_->LookForRoom();
  EXPECT_FALSE(disks_->Troubles().empty());
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 10).ok());
  near_.Answer();
  EXPECT_FALSE(disks_->Troubles().empty()) << "that it can be read says nothing of room";
  make(Status::Ok());
  EXPECT_TRUE(disks_->Troubles().empty());
}

TEST_F(NvmeDisksTest, ARequestThatIsTooOldSwitchesItsDiskOffOnce) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 10).ok());
  now_us_ += kStuckUs;
  disks_->SwitchOffStuck();
  EXPECT_EQ(disks_->stuck_count(), 0u);
  now_us_ += 1;
  disks_->SwitchOffStuck();
  EXPECT_EQ(disks_->stuck_count(), 1u);
  EXPECT_FALSE(disks_->is_on(0));
  EXPECT_TRUE(disks_->is_on(1));
  disks_->OnProbe(0, Status::Ok());
  disks_->SwitchOffStuck();
  EXPECT_TRUE(disks_->is_on(0)) << "for that request it was off already";
  EXPECT_EQ(disks_->stuck_count(), 1u);
}

TEST_F(NvmeDisksTest, PredictionsAreOfDisksThatAreOn) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kWrite, 0, 1'000'000).ok());
  const uint64_t both_us = disks_->PredictReadUs(4096);
  now_us_ += kStuckUs + 1;
  disks_->SwitchOffStuck();
  EXPECT_LT(disks_->PredictReadUs(4096), both_us) << "the busy one is off";
}

TEST_F(NvmeDisksTest, MoreThanOneReadIsSpreadOverTheDisks) {
  constexpr uint64_t kRead = 1'000'000;
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, kRead).ok());
  now_us_ += 600;  // the guess: 2,000 bytes a µs behind 100 µs
  near_.Answer();
  disks_->MeasureRead(done_.back());
  const uint64_t one_us = disks_->PredictReadUs(kRead);
  EXPECT_EQ(one_us, 600u) << "on one of them";
  EXPECT_EQ(disks_->PredictReadUs(2 * kRead), one_us) << "one on each";
  EXPECT_EQ(disks_->PredictReadUs(8 * kRead), 2100u);
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 1, kRead).ok());
  EXPECT_EQ(disks_->PredictReadUs(8 * kRead), 2600u) << "the busier one is the last";
  EXPECT_EQ(disks_->PredictReadUs(kRead), 850u) << "perhaps on the busier one";
}

TEST_F(NvmeDisksTest, ADiskThatOwesAnswersAndIsSilentIsNotBelievedToBeFast) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kSync).ok());
  now_us_ += 50'000;
  EXPECT_EQ(disks_->SilentUs(0), 0u) << "others may take their time";
  near_.Answer();
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 8).ok());
  now_us_ += 700;
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 8).ok());
  now_us_ += 200;
  EXPECT_EQ(disks_->SilentUs(0), 900u);
  EXPECT_EQ(disks_->SilentUs(1), 0u) << "the other one owes nothing";
  near_.AnswerAt(1);
  EXPECT_EQ(disks_->SilentUs(0), 0u) << "one read that stumbles holds no other up";
  now_us_ += 150;
  EXPECT_EQ(disks_->SilentUs(0), 150u);
  now_us_ += kStuckUs;
  disks_->SwitchOffStuck();
  disks_->OnProbe(0, Status::Ok());
  EXPECT_EQ(disks_->SilentUs(0), 0u) << "a read that is given up holds nobody up";
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 8).ok());
  now_us_ += 300;
  EXPECT_EQ(disks_->SilentUs(0), 300u);
  near_.Answer();
  near_.Answer();
  EXPECT_EQ(disks_->SilentUs(0), 0u);
}

// Who is told that it is silent does not ask: one read that hangs would keep everybody away.
TEST_F(NvmeDisksTest, ASilentDiskIsTriedAgainEverMoreRarely) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 8).ok());
  now_us_ += 1'000'000;
  EXPECT_EQ(disks_->SilentUs(0), 1'000'000u);
  now_us_ += 1;
  EXPECT_EQ(disks_->SilentUs(0), 0u) << "whoever asks now finds out";
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 8).ok());
  EXPECT_EQ(disks_->SilentUs(0), 1'000'001u) << "and nobody else";
  now_us_ += 9'000'000;
  near_.AnswerAt(1);
  EXPECT_EQ(disks_->SilentUs(0), 0u);
  ASSERT_TRUE(Submit(NvmeRequestKind::kRead, 0, 8).ok());
  now_us_ += 900'000;
  EXPECT_EQ(disks_->SilentUs(0), 900'000u);
}

TEST_F(NvmeDisksTest, NobodyIsToldOnceItIsGone) {
  disks_.reset();
  EXPECT_EQ(near_.listener(), nullptr);
  EXPECT_EQ(far_.listener(), nullptr);
}

TEST_F(NvmeDisksTest, ARequestIsAnsweredOnce) {
  ASSERT_TRUE(Submit(NvmeRequestKind::kSync).ok());
  const uint64_t tag = near_.asked[0].tag;
  near_.Answer();
  EXPECT_DEATH(OnDiskDone(tag, Status::Ok()), "answered once");
}

}  // namespace
}  // namespace terrace
