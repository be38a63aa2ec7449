#include "sim/fault_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/memory_tier.h"

namespace terrace::sim {
namespace {

constexpr uint32_t kAlways = 1'000'000;
constexpr uint64_t kLengthBytes = 64 << 10;

class FaultTierTest : public testing::Test, public TierListener {
 protected:
  FaultTierTest() : memory_({.capacity_bytes = 1 << 20, .seed = 1}), tier_(memory_, 2) {
    memory_.SetListener(&tier_);
    tier_.SetListener(this);
  }
  void OnPersisted(uint32_t, uint32_t, CommitId, uint32_t) override { ++persisted_count_; }
  void OnRoom(uint32_t) override {}
  void OnTransferDone(TransferId /*transfer_id*/, Status status) override {
    statuses_.push_back(status.code());
  }
  void Settle() {
    while (memory_.NextCompletionUs() != UINT64_MAX) memory_.RunUntil(memory_.NextCompletionUs());
  }
  std::vector<std::byte> Bytes(int value) const {
    return std::vector<std::byte>(kLengthBytes, static_cast<std::byte>(value));
  }
  Extent Stored(const std::vector<std::byte>& bytes) {
    const Extent extent = tier_.Allocate(0, bytes.size(), 1).value();
    EXPECT_TRUE(tier_.Write(next_id_++, extent, BlockRecord{}, bytes).ok());
    Settle();
    return extent;
  }
  StatusCode ReadInto(const Extent& extent, std::vector<std::byte>* into) {
    const Status status = tier_.Read(next_id_++, extent, *into);
    if (!status.ok()) return status.code();
    Settle();
    return statuses_.back();
  }

  MemoryTier memory_;
  FaultTier tier_;
  std::vector<StatusCode> statuses_;
  uint32_t persisted_count_ = 0;
  TransferId next_id_ = 1;
};

TEST_F(FaultTierTest, FailedTransfersSayIo) {
  const Extent extent = Stored(Bytes(1));
  std::vector<std::byte> into = Bytes(0);
  tier_.SetRate(Fault::kReadFails, kAlways);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kIo);
  tier_.SetRate(Fault::kWriteFails, kAlways);
  Stored(Bytes(2));
  EXPECT_EQ(statuses_.back(), StatusCode::kIo);
  EXPECT_EQ(tier_.stats().failed_transfers, 2u);
  EXPECT_EQ(tier_.struck(Fault::kReadFails), 1u);
  EXPECT_EQ(tier_.struck(Fault::kWriteFails), 1u);
}

TEST_F(FaultTierTest, ShortReadFillsHalfTheBufferAndSaysIo) {
  const Extent extent = Stored(Bytes(1));
  std::vector<std::byte> into = Bytes(9);
  tier_.SetRate(Fault::kReadShort, kAlways);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kIo);
  EXPECT_EQ(into[kLengthBytes / 2 - 1], std::byte{1});
  EXPECT_EQ(into[kLengthBytes / 2], std::byte{9});
}

TEST_F(FaultTierTest, ShortWriteSaysIoAndLeavesGarbage) {
  tier_.SetRate(Fault::kWriteShort, kAlways);
  const Extent extent = Stored(Bytes(1));
  EXPECT_EQ(statuses_.back(), StatusCode::kIo);
  std::vector<std::byte> into = Bytes(0);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kOk);
  EXPECT_EQ(into.front(), std::byte{1});
  EXPECT_NE(into.back(), std::byte{1});
}

TEST_F(FaultTierTest, FlippedBitIsOneAndIsNotAdmitted) {
  const Extent extent = Stored(Bytes(1));
  std::vector<std::byte> into = Bytes(0);
  tier_.SetRate(Fault::kReadFlipsBit, kAlways);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kOk);
  EXPECT_EQ(std::ranges::count_if(into, [](std::byte b) { return b != std::byte{1}; }), 1);
}

TEST_F(FaultTierTest, MisdirectedReadReturnsAnotherExtentsBytes) {
  const Extent extent = Stored(Bytes(1));
  std::vector<std::byte> into = Bytes(0);
  tier_.SetRate(Fault::kReadMisdirected, kAlways);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kOk);
  EXPECT_EQ(into, Bytes(1)) << "no other extent of this length yet";
  EXPECT_EQ(tier_.struck(Fault::kReadMisdirected), 0u);
  Stored(Bytes(2));
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kOk);
  EXPECT_EQ(into, Bytes(2));
}

TEST_F(FaultTierTest, ExtentReadByMistakeMayBeFreedMeanwhile) {
  const Extent extent = Stored(Bytes(1));
  const Extent other = Stored(Bytes(2));
  std::vector<std::byte> into = Bytes(0);
  tier_.SetRate(Fault::kReadMisdirected, kAlways);
  ASSERT_TRUE(tier_.Read(99, extent, into).ok());
  tier_.Free(other);  // its owner knows of no transfer
  Settle();
  EXPECT_EQ(into, Bytes(2));
  EXPECT_EQ(tier_.stats().used_bytes, kLengthBytes);
}

TEST_F(FaultTierTest, HangingTransferCompletesWhenReleased) {
  const Extent extent = Stored(Bytes(1));
  std::vector<std::byte> into = Bytes(0);
  statuses_.clear();
  tier_.SetRate(Fault::kHangs, kAlways);
  ASSERT_TRUE(tier_.Read(99, extent, into).ok());
  Settle();
  EXPECT_TRUE(statuses_.empty());
  EXPECT_EQ(tier_.stats().transfers_in_flight, 1u);
  tier_.ReleaseHung();
  EXPECT_EQ(statuses_, std::vector{StatusCode::kOk});
  EXPECT_EQ(tier_.stats().transfers_in_flight, 0u);
  tier_.Free(extent);
}

TEST_F(FaultTierTest, RefusalsStartNothing) {
  const Extent extent = Stored(Bytes(1));
  std::vector<std::byte> into = Bytes(0);
  statuses_.clear();
  tier_.SetRate(Fault::kBusy, kAlways);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kBusy);
  tier_.SetRate(Fault::kNoSpace, kAlways);
  EXPECT_EQ(tier_.Allocate(0, kLengthBytes, 1).code(), StatusCode::kNoSpace);
  tier_.SwitchOff();
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kUnsupported);
  EXPECT_EQ(tier_.Allocate(0, kLengthBytes, 1).code(), StatusCode::kUnsupported);
  EXPECT_FALSE(tier_.stats().is_healthy);
  Settle();
  EXPECT_TRUE(statuses_.empty());
  tier_.SwitchOn();
  tier_.SetRate(Fault::kBusy, 0);
  EXPECT_EQ(ReadInto(extent, &into), StatusCode::kOk);
}

TEST_F(FaultTierTest, SameSeedStrikesTheSameCalls) {
  const auto trace = [](uint64_t seed) {
    MemoryTier memory({.capacity_bytes = 64 << 20, .seed = 1});
    FaultTier tier(memory, seed);
    tier.SetRate(Fault::kNoSpace, 300'000);
    std::vector<bool> outcomes;
    for (int i = 0; i < 200; ++i) outcomes.push_back(tier.Allocate(0, kLengthBytes, 1).ok());
    return outcomes;
  };
  EXPECT_EQ(trace(7), trace(7));
  EXPECT_NE(trace(7), trace(8));
}

}  // namespace
}  // namespace terrace::sim
