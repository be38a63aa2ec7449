#include "sim/sim_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>

#include "contract/tiers/tier_contract.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kFileBytes = 1 << 20;

class SimDiskTest : public testing::Test, public DiskListener {
 protected:
  void OnDiskDone(uint64_t tag, Status status) override { done_.push_back({tag, status}); }

  void Open(uint64_t seed = 1) {
    disk_ = std::make_unique<SimDisk>(medium_, SimDisk::Options{.seed = seed, .queue_max = 8});
    disk_->SetListener(this);
  }
  void SetUp() override { Open(); }

  Status Run(DiskRequest request) {
    request.tag = ++tag_;
    const Status status = disk_->Submit(request);
    if (!status.ok()) return status;
    while (disk_->NextCompletionUs() != UINT64_MAX) disk_->RunUntil(disk_->NextCompletionUs());
    if (done_.empty() || done_.back().first != tag_) return Status(StatusCode::kGone, "no answer");
    return done_.back().second;
  }
  DiskFile Create(const std::string& name) {
    const DiskFile file = disk_->NewFile();
    EXPECT_TRUE(
        Run({.op = DiskOp::kCreate, .file = file, .length_bytes = kFileBytes, .name = name}).ok());
    return file;
  }
  std::span<std::byte> Filled(uint64_t length_bytes, int value) {
    const std::span<std::byte> bytes = buffers_.Take(length_bytes);
    std::ranges::fill(bytes, static_cast<std::byte>(value));
    return bytes;
  }
  Status Write(DiskFile file, uint64_t offset_bytes, std::span<const std::byte> from) {
    return Run({.op = DiskOp::kWrite, .file = file, .offset_bytes = offset_bytes, .from = from});
  }
  Status Sync(DiskFile file) { return Run({.op = DiskOp::kSync, .file = file}); }
  std::vector<std::byte> Seen(uint64_t offset_bytes, uint64_t length_bytes) {
    std::vector<std::byte> bytes(length_bytes);
    medium_.Peek("a", offset_bytes, bytes);
    return bytes;
  }

  SimMedium medium_{4 * kFileBytes};
  std::unique_ptr<SimDisk> disk_;
  PlainBuffers buffers_;
  std::vector<std::pair<uint64_t, Status>> done_;
  uint64_t tag_ = 0;
};

TEST_F(SimDiskTest, WhatWasWrittenIsRead) {
  const DiskFile file = Create("a");
  const std::span<std::byte> written = Filled(8192, 7);
  ASSERT_TRUE(Write(file, 4096, written).ok());
  const std::span<std::byte> read = Filled(8192, 0);
  ASSERT_TRUE(Run({.op = DiskOp::kRead, .file = file, .offset_bytes = 4096, .into = read}).ok());
  EXPECT_TRUE(std::ranges::equal(written, read));
  EXPECT_EQ(
      Run({.op = DiskOp::kRead, .file = file, .offset_bytes = kFileBytes, .into = read}).code(),
      StatusCode::kIo);
}

// PROMISE: T10 what the simulated drive loses
TEST_F(SimDiskTest, OnlyWhatASyncCoversSurvivesThePowerForCertain) {
  bool has_torn = false, has_lost = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    medium_ = SimMedium(4 * kFileBytes);
    Open(seed);
    const DiskFile file = Create("a");
    ASSERT_TRUE(Write(file, 0, Filled(4096, 1)).ok());
    ASSERT_TRUE(Sync(file).ok());
    ASSERT_TRUE(Write(file, 0, Filled(4096, 2)).ok());
    disk_->PowerLoss();
    std::set<std::byte> sectors;
    for (uint64_t at = 0; at < 4096; at += 512) {
      const std::vector<std::byte> sector = Seen(at, 512);
      ASSERT_EQ(std::set(sector.begin(), sector.end()).size(), 1u) << "a sector is never torn";
      sectors.insert(sector[0]);
    }
    EXPECT_FALSE(sectors.contains(std::byte{0})) << "a synced write was lost";
    has_torn |= sectors.size() == 2;
    has_lost |= sectors.contains(std::byte{1});
  }
  EXPECT_TRUE(has_torn && has_lost);
}

TEST_F(SimDiskTest, FileThatWasNotSyncedMayBeGone) {
  int gone = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    medium_ = SimMedium(4 * kFileBytes);
    Open(seed);
    Create("a");
    disk_->PowerLoss();
    gone += !medium_.Has("a");
  }
  EXPECT_GT(gone, 0);
  EXPECT_LT(gone, 20);
}

TEST_F(SimDiskTest, FailedSyncLosesForGoodWhatItCovered) {
  const DiskFile file = Create("a");
  ASSERT_TRUE(Sync(file).ok());
  ASSERT_TRUE(Write(file, 0, Filled(4096, 2)).ok());
  disk_->SetRate(DiskFault::kSyncFails, 1'000'000);
  EXPECT_EQ(Sync(file).code(), StatusCode::kIo);
  EXPECT_EQ(Seen(0, 1)[0], std::byte{2}) << "the page cache still has it";
  disk_->HealAll();
  EXPECT_TRUE(Sync(file).ok()) << "and claims success";
  disk_->PowerLoss();
  EXPECT_EQ(Seen(0, 1)[0], std::byte{0});
}

TEST_F(SimDiskTest, DeadProcessLosesOnlyWhatWasInFlight) {
  const DiskFile file = Create("a");
  ASSERT_TRUE(Write(file, 0, Filled(4096, 1)).ok());
  const std::span<std::byte> late = Filled(4096, 2);
  ASSERT_TRUE(
      disk_->Submit({.op = DiskOp::kWrite, .file = file, .offset_bytes = 4096, .from = late}).ok());
  const size_t done_before = done_.size();
  disk_->KillProcess();
  disk_->RunUntil(1'000'000);
  EXPECT_EQ(done_.size(), done_before);
  EXPECT_EQ(Seen(0, 1)[0], std::byte{1});
  EXPECT_EQ(disk_->Submit({.op = DiskOp::kSync, .file = file}).code(), StatusCode::kBusy);
}

TEST_F(SimDiskTest, FullDriveAnswersNoSpace) {
  for (const char* name : {"a", "b", "c", "d"}) Create(name);
  const Status status = Run(
      {.op = DiskOp::kCreate, .file = disk_->NewFile(), .length_bytes = kFileBytes, .name = "e"});
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.detail(), ENOSPC);
  DiskFile file;
  uint64_t length_bytes;
  EXPECT_EQ(disk_->OpenNow("e", &file, &length_bytes).code(), StatusCode::kNotFound);
}

TEST_F(SimDiskTest, EveryFaultStrikesAndKeepsThePromiseOfOneAnswer) {
  const DiskFile file = Create("a");
  ASSERT_TRUE(Write(file, 0, Filled(4096, 1)).ok());
  ASSERT_TRUE(Write(file, 0, Filled(4096, 2)).ok());
  const std::span<std::byte> into = Filled(4096, 0);
  const DiskRequest read{.op = DiskOp::kRead, .file = file, .into = into};
  const auto only = [&](DiskFault fault) {
    disk_->HealAll();
    disk_->SetRate(fault, 1'000'000);
  };
  only(DiskFault::kReadFails);
  EXPECT_EQ(Run(read).detail(), EIO);
  only(DiskFault::kShort);
  EXPECT_EQ(Run(read).code(), StatusCode::kIo);
  only(DiskFault::kStaleRead);
  EXPECT_TRUE(Run(read).ok());
  EXPECT_EQ(into[0], std::byte{1}) << "the bytes of before";
  only(DiskFault::kBusy);
  EXPECT_EQ(Run(read).code(), StatusCode::kBusy);
  only(DiskFault::kStuck);
  EXPECT_EQ(Run(read).code(), StatusCode::kGone) << "no answer for now";
  disk_->ReleaseStuck();
  disk_->RunUntil(disk_->NextCompletionUs());
  EXPECT_TRUE(done_.back().first == tag_ && done_.back().second.ok());
  only(DiskFault::kWriteFails);
  EXPECT_EQ(Write(file, 0, into).detail(), EIO);
  only(DiskFault::kMisdirected);
  const std::span<std::byte> stray = Filled(4096, 9);
  EXPECT_TRUE(Write(file, 4096, stray).ok());
  const std::vector<std::byte> all = Seen(0, kFileBytes);
  EXPECT_EQ(std::ranges::count(all, std::byte{9}), 4096);
  only(DiskFault::kCreateFails);
  EXPECT_EQ(Run({.op = DiskOp::kCreate, .file = disk_->NewFile(), .name = "b"}).detail(), EIO);
}

TEST_F(SimDiskTest, CopyOfAMediumIsIndependent) {
  Create("a");
  SimMedium copy = medium_;
  copy.FlipBit("a", 100, 3);
  EXPECT_EQ(Seen(100, 1)[0], std::byte{0});
  std::byte flipped{};
  copy.Peek("a", 100, {&flipped, 1});
  EXPECT_EQ(flipped, std::byte{8});
}

TEST_F(SimDiskTest, EqualSeedsGiveEqualTraces) {
  const auto trace = [this](uint64_t seed) {
    medium_ = SimMedium(4 * kFileBytes);
    done_.clear();
    Open(seed);
    const DiskFile file = Create("a");
    for (uint64_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(disk_->Submit({.tag = 100 + i, .op = DiskOp::kSync, .file = file}).ok());
    }
    disk_->RunUntil(1'000'000);
    std::vector<uint64_t> tags;
    for (const auto& [tag, status] : done_) tags.push_back(tag);
    tag_ = 0;
    return tags;
  };
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

}  // namespace
}  // namespace terrace::sim
