#include "contract/tiers/tier_contract.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "terrace/arena_layout.h"

namespace terrace {

// Tiers that only some builds have may leave the suite without an instance.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierContract);

std::span<std::byte> PlainBuffers::Take(uint64_t length_bytes) {
  const uint64_t size_bytes = RoundUp(std::max<uint64_t>(length_bytes, 1), kArenaPageBytes);
  buffers_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kArenaPageBytes, size_bytes)));
  return {buffers_.back().get(), length_bytes};
}

void TierContract::SetUp() { harness_ = GetParam().make(*this); }

void TierContract::TearDown() {
  is_settling_ = true;
  harness_->Settle();
  harness_.reset();
}

void TierContract::OnTransferDone(TransferId transfer_id, Status status) {
  EXPECT_TRUE(is_settling_) << "a completion came from inside another call";
  completions_.push_back({transfer_id, status});
}

TransferId TierContract::BeginWrite(const Extent& extent, std::span<const std::byte> from) {
  const TransferId id = 1000 + begun_.size();
  BlockRecord record;
  record.key = BlockKey{extent.position, extent.generation};
  record.commit_id = id;
  const Status status = tier().Write(id, extent, record, from);
  EXPECT_TRUE(status.ok()) << status.what();
  begun_.push_back(id);
  return id;
}

TransferId TierContract::BeginRead(const Extent& extent, std::span<std::byte> into) {
  const TransferId id = 1000 + begun_.size();
  const Status status = tier().Read(id, extent, into);
  EXPECT_TRUE(status.ok()) << status.what();
  begun_.push_back(id);
  return id;
}

void TierContract::SettleAndExpectAllOk() {
  is_settling_ = true;
  harness_->Settle();
  is_settling_ = false;
  std::map<TransferId, int> times;
  for (const Completion& completion : completions_) {
    ++times[completion.transfer_id];
    EXPECT_TRUE(completion.status.ok()) << completion.status.what();
  }
  EXPECT_EQ(times.size(), begun_.size());
  for (const TransferId id : begun_) EXPECT_EQ(times[id], 1) << "transfer " << id;
}

std::span<std::byte> TierContract::Pattern(uint64_t length_bytes, uint64_t seed) {
  const std::span<std::byte> bytes = harness_->Buffer(length_bytes);
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15 + length_bytes);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
  }
  return bytes;
}

Result<Extent> TierContract::Allocate(uint64_t length_bytes) {
  for (int round = 0; round < 8; ++round) {
    const Result<Extent> extent = tier().Allocate(0, length_bytes, 1);
    if (extent.ok() || extent.code() != StatusCode::kBusy) return extent;
    is_settling_ = true;
    harness_->Settle();
    is_settling_ = false;
  }
  return Status(StatusCode::kBusy, "room never came");
}

std::vector<Extent> TierContract::FillWith(uint64_t length_bytes) {
  std::vector<Extent> extents;
  for (;;) {
    const Result<Extent> extent = Allocate(length_bytes);
    const TierStats stats = tier().stats();
    EXPECT_LE(stats.used_bytes, stats.capacity_bytes);
    if (!extent.ok()) {
      EXPECT_EQ(extent.code(), StatusCode::kNoSpace) << extent.status().what();
      return extents;
    }
    extents.push_back(*extent);
    if (extents.size() > 100'000) {
      ADD_FAILURE() << "a tier for this suite is small";
      return extents;
    }
  }
}

namespace {

std::vector<uint64_t> LengthsUpTo(uint64_t length_bytes_max) {
  std::vector<uint64_t> lengths = {
      4 * kKiB, 8 * kKiB, 12 * kKiB,       64 * kKiB, 68 * kKiB,       640 * kKiB, 896 * kKiB,
      1 * kMiB, 2 * kMiB, 1098 * 4 * kKiB, 5 * kMiB,  8 * kMiB - 4096, 8 * kMiB};
  std::erase_if(lengths, [&](uint64_t length) { return length > length_bytes_max; });
  return lengths;
}

TEST_P(TierContract, WhatWasWrittenIsRead) {
  for (const uint64_t length_bytes : LengthsUpTo(harness_->length_bytes_max())) {
    SCOPED_TRACE(length_bytes);
    Result<Extent> taken = Allocate(length_bytes);
    // What another length has freed may be room once nothing of it is under way.
    for (int round = 0; round < 50 && taken.code() == StatusCode::kNoSpace; ++round) {
      SettleAndExpectAllOk();
      taken = Allocate(length_bytes);
    }
    ASSERT_TRUE(taken.ok()) << taken.status().what();
    const Extent extent = *taken;
    EXPECT_EQ(extent.length_bytes, length_bytes);
    const std::span<std::byte> written = Pattern(length_bytes, 1);
    const std::span<std::byte> read = Pattern(length_bytes, 2);
    BeginWrite(extent, written);
    SettleAndExpectAllOk();
    BeginRead(extent, read);
    SettleAndExpectAllOk();
    EXPECT_TRUE(std::ranges::equal(written, read));
    tier().Free(extent);
  }
}

TEST_P(TierContract, ARangeIsTheBytesOfThatPlace) {
  const uint64_t length_bytes = std::min<uint64_t>(harness_->length_bytes_max(), 640 * kKiB);
  const Extent extent = *Allocate(length_bytes);
  const std::span<std::byte> written = Pattern(length_bytes, 1);
  BeginWrite(extent, written);
  SettleAndExpectAllOk();
  if (!tier().reads_ranges()) {
    const std::span<std::byte> into = harness_->Buffer(4 * kKiB);
    EXPECT_EQ(tier().ReadRange(1, extent, 0, into).code(), StatusCode::kUnsupported);
    return;
  }
  for (const uint64_t offset_bytes : {uint64_t{0}, 4 * kKiB, 64 * kKiB, length_bytes - 8 * kKiB}) {
    const std::span<std::byte> read = Pattern(8 * kKiB, 2 + offset_bytes);
    begun_.push_back(1000 + begun_.size());
    ASSERT_TRUE(tier().ReadRange(begun_.back(), extent, offset_bytes, read).ok());
    SettleAndExpectAllOk();
    EXPECT_TRUE(std::ranges::equal(written.subspan(offset_bytes, read.size()), read));
  }
}

TEST_P(TierContract, ExtentsNeverOverlap) {
  // Fill the tier with mixed lengths, write each its own bytes, read all back.
  const std::vector<uint64_t> lengths =
      LengthsUpTo(std::min<uint64_t>(harness_->length_bytes_max(), kMiB));
  struct Piece {
    Extent extent;
    std::span<std::byte> written, read;
  };
  std::vector<Piece> pieces;
  for (uint64_t i = 0;; ++i) {
    const uint64_t length_bytes = lengths[i % lengths.size()];
    const Result<Extent> extent = Allocate(length_bytes);
    if (!extent.ok()) break;
    pieces.push_back({*extent, Pattern(length_bytes, 2 * i), Pattern(length_bytes, 2 * i + 1)});
  }
  ASSERT_GT(pieces.size(), lengths.size());
  const uint32_t batch = harness_->queue_max();
  for (size_t i = 0; i < pieces.size(); ++i) {
    BeginWrite(pieces[i].extent, pieces[i].written);
    if ((i + 1) % batch == 0) SettleAndExpectAllOk();
  }
  SettleAndExpectAllOk();
  for (size_t i = 0; i < pieces.size(); ++i) {
    BeginRead(pieces[i].extent, pieces[i].read);
    if ((i + 1) % batch == 0) SettleAndExpectAllOk();
  }
  SettleAndExpectAllOk();
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(pieces[i].written, pieces[i].read)) << "extent " << i;
  }
}

TEST_P(TierContract, ReallocatedPlaceHasAnotherGeneration) {
  const uint64_t length_bytes = std::min<uint64_t>(harness_->length_bytes_max(), kMiB);
  const std::vector<Extent> before = FillWith(length_bytes);
  ASSERT_FALSE(before.empty());
  for (const Extent& extent : before) tier().Free(extent);
  for (const Extent& extent : FillWith(length_bytes)) {
    for (const Extent& old : before) EXPECT_FALSE(extent == old) << "at " << extent.position;
  }
}

TEST_P(TierContract, StaleExtentNeverReadsNewerBytes) {
  const uint64_t length_bytes = 64 * kKiB;
  const Extent stale = Allocate(length_bytes).value();
  tier().Free(stale);
  std::vector<Extent> extents = FillWith(length_bytes);
  const std::span<std::byte> newer = Pattern(length_bytes, 1);
  for (const Extent& extent : extents) {
    BeginWrite(extent, newer);
    SettleAndExpectAllOk();
  }
  const std::span<std::byte> into = Pattern(length_bytes, 2);
  if (tier().Read(1, stale, into).ok()) {
    is_settling_ = true;
    harness_->Settle();
    EXPECT_FALSE(completions_.back().status.ok());
  }
  EXPECT_FALSE(std::ranges::equal(newer, into));
}

TEST_P(TierContract, FullTierAnswersNoSpaceAndTakesAgainWhatWasFreed) {
  const uint64_t length_bytes = std::min<uint64_t>(harness_->length_bytes_max(), kMiB);
  std::vector<Extent> extents = FillWith(length_bytes);
  ASSERT_GT(extents.size(), 1u);
  EXPECT_EQ(Allocate(length_bytes).code(), StatusCode::kNoSpace);
  tier().Free(extents.back());
  EXPECT_TRUE(Allocate(length_bytes).ok());
  EXPECT_EQ(Allocate(length_bytes).code(), StatusCode::kNoSpace);
}

TEST_P(TierContract, StatsAddUp) {
  const TierStats at_start = tier().stats();
  EXPECT_TRUE(at_start.is_healthy);
  const std::vector<uint64_t> lengths = {4 * kKiB, 64 * kKiB, 640 * kKiB};
  std::vector<Extent> extents;
  uint64_t sum_bytes = 0;
  for (const uint64_t length_bytes : lengths) {
    extents.push_back(Allocate(length_bytes).value());
    sum_bytes += length_bytes;
  }
  for (size_t i = 0; i < lengths.size(); ++i) BeginWrite(extents[i], Pattern(lengths[i], 1));
  EXPECT_EQ(tier().stats().transfers_in_flight, lengths.size());
  EXPECT_GE(tier().stats().used_bytes, at_start.used_bytes + sum_bytes);
  SettleAndExpectAllOk();
  BeginRead(extents[1], Pattern(lengths[1], 2));
  SettleAndExpectAllOk();
  const TierStats stats = tier().stats();
  EXPECT_EQ(stats.transfers_in_flight, 0u);
  EXPECT_EQ(stats.written_bytes - at_start.written_bytes, sum_bytes);
  EXPECT_EQ(stats.read_bytes - at_start.read_bytes, lengths[1]);
  EXPECT_EQ(stats.failed_transfers, at_start.failed_transfers);
  for (const Extent& extent : extents) tier().Free(extent);
  EXPECT_EQ(tier().stats().used_bytes, at_start.used_bytes);
}

TEST_P(TierContract, FullQueueAnswersBusyAndStartsNothing) {
  const uint64_t length_bytes = 4 * kKiB;
  const Extent extent = Allocate(length_bytes).value();
  BeginWrite(extent, Pattern(length_bytes, 1));
  SettleAndExpectAllOk();
  for (uint32_t i = 0; i < harness_->queue_max(); ++i) {
    BeginRead(extent, harness_->Buffer(length_bytes));
  }
  const std::span<std::byte> spare = harness_->Buffer(length_bytes);
  EXPECT_EQ(tier().Read(1, extent, spare).code(), StatusCode::kBusy);
  EXPECT_EQ(tier().Write(2, extent, BlockRecord{}, spare).code(), StatusCode::kBusy);
  SettleAndExpectAllOk();  // neither 1 nor 2 is among the completions
  BeginRead(extent, spare);
  SettleAndExpectAllOk();
}

TEST_P(TierContract, FreeIsAllowedOnceTheTransfersAreDone) {
  const uint64_t length_bytes = std::min<uint64_t>(harness_->length_bytes_max(), kMiB);
  for (uint64_t round = 0; round < 20; ++round) {
    const Extent extent = Allocate(length_bytes).value();
    const std::span<std::byte> written = Pattern(length_bytes, round);
    const std::span<std::byte> read = harness_->Buffer(length_bytes);
    BeginWrite(extent, written);
    SettleAndExpectAllOk();
    BeginRead(extent, read);
    SettleAndExpectAllOk();
    tier().Free(extent);
    EXPECT_TRUE(std::ranges::equal(written, read));
  }
}

TEST_P(TierContract, PredictionGrowsWithTheLength) {
  EXPECT_GE(tier().PredictReadUs(8 * kMiB), tier().PredictReadUs(4 * kKiB));
}

}  // namespace
}  // namespace terrace
