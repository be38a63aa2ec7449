// The pieces benchmarks are made of: block patterns, samples, CPU lists, sweeps of codecs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/host/host_device.h"
#include "cuda/kernels/codec.h"
#include "tools/terrace/bench/bench_client.h"
#include "tools/terrace/bench/block_pattern.h"
#include "tools/terrace/bench/codec_sweep.h"
#include "tools/terrace/bench/cpu_pin.h"
#include "tools/terrace/bench/samples.h"

namespace terrace::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

BlockKey KeyOf(uint64_t low, uint64_t high) {
  BlockKey key;
  key.low = low;
  key.high = high;
  return key;
}

TEST(BlockPattern, EveryChangedByteIsFoundWhereItIs) {
  const BlockKey key = KeyOf(5, 6);
  std::vector<std::byte> block(10'000);
  FillPattern(key, block);
  EXPECT_EQ(FirstMismatch(key, block), std::nullopt);
  for (uint64_t offset : {0ul, 7ul, 4095ul, 4096ul, 9'999ul}) {
    block[offset] ^= std::byte{1};
    EXPECT_EQ(FirstMismatch(key, block), offset);
    EXPECT_EQ(PatternByte(key, offset), block[offset] ^ std::byte{1});
    block[offset] ^= std::byte{1};
  }
}

TEST(BlockPattern, AnotherKeyOrPlaceIsAMismatch) {
  std::vector<std::byte> block(8192);
  FillPattern(KeyOf(1, 2), block);
  EXPECT_TRUE(FirstMismatch(KeyOf(1, 3), block).has_value());
  EXPECT_TRUE(FirstMismatch(KeyOf(2, 2), block).has_value());
  // The second half of a block is not the first half of anything.
  EXPECT_TRUE(FirstMismatch(KeyOf(1, 2), std::span(block).subspan(4096)).has_value());
}

TEST(BlockPattern, AMismatchFailsTheReportWithKeyAndOffset) {
  std::vector<std::byte> block(4096);
  FillPattern(KeyOf(1, 2), block);
  PhaseReport report;
  EXPECT_TRUE(VerifyBlock(KeyOf(1, 2), block, &report));
  EXPECT_EQ(report.blocks_verified, 1u);
  block[77] ^= std::byte{255};
  EXPECT_FALSE(VerifyBlock(KeyOf(1, 2), block, &report));
  EXPECT_TRUE(report.is_failed);
  EXPECT_THAT(report.why, HasSubstr(ToHex(KeyOf(1, 2))));
  EXPECT_THAT(report.why, HasSubstr("byte 77 of 4096"));
}

TEST(BenchShape, EveryGroupIsValidAndSlotsAreWholePages) {
  for (uint32_t parts : {1u, 3u, 128u}) {
    const BenchShape shape{.block_bytes = 6000ull * parts, .part_count = parts};
    std::string why;
    EXPECT_TRUE(BenchGroup(shape).Validate(&why).ok()) << why;
    EXPECT_EQ(shape.slot_bytes(), BenchGroup(shape).members[0].spec.slot_bytes());
  }
}

TEST(Samples, MedianAndRange) {
  const Summary odd = Summarize(std::vector<double>{3, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.smallest, 1);
  EXPECT_EQ(odd.largest, 3);
  EXPECT_EQ(Summarize(std::vector<double>{4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(FormatSummary(odd, 1), "2.0 (1.0-3.0)");
  EXPECT_EQ(Summarize({}).median, 0);
}

TEST(Samples, PercentilesAreRightToTheWidthOfABucket) {
  for (uint64_t value : {0ul, 1ul, 63ul, 64ul, 65ul, 127ul, 128ul, 200ul, 1'000'000ul, 1ul << 39}) {
    LatencyHistogram histogram;
    histogram.Add(value);
    EXPECT_NEAR(histogram.Percentile(0.5), static_cast<double>(value),
                static_cast<double>(value) / 64)
        << value;
  }
  LatencyHistogram histogram;
  for (uint64_t value = 1; value <= 10'000; ++value) histogram.Add(value);
  EXPECT_NEAR(histogram.Percentile(0.5), 5'000, 5'000 / 64.0);
  EXPECT_NEAR(histogram.Percentile(0.99), 9'900, 9'900 / 64.0);
  EXPECT_NEAR(histogram.Percentile(1.0), 10'000, 10'000 / 64.0);
  EXPECT_NEAR(histogram.Percentile(0.0), 1, 1);
}

TEST(Samples, WhatExceedsTheHistogramIsInItsLastBucket) {
  LatencyHistogram histogram;
  histogram.Add(UINT64_MAX);
  EXPECT_GT(histogram.Percentile(0.5), 1e12);
}

TEST(Samples, HistogramsAdd) {
  LatencyHistogram one;
  LatencyHistogram other;
  one.Add(10);
  other.Add(1000);
  other.Add(1000);
  one.Add(other);
  EXPECT_EQ(one.count(), 3u);
  EXPECT_NEAR(one.Percentile(0.5), 1000, 16);
}

TEST(CpuPin, ListsAndRangesAreRead) {
  const std::vector<int> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  std::vector<int> cpus;
  std::string why;
  const std::string first = std::to_string(allowed.front());
  ASSERT_TRUE(ParseCpuList(first + "," + first + "-" + first, &cpus, &why)) << why;
  EXPECT_THAT(cpus, ElementsAre(allowed.front(), allowed.front()));
}

TEST(CpuPin, WhatIsNoListOrNoUsableCpuIsRefused) {
  std::vector<int> cpus;
  std::string why;
  for (const char* text : {"", ",", "a", "0,", "2-1", "-1", "0x1", "99999999999"}) {
    EXPECT_FALSE(ParseCpuList(text, &cpus, &why)) << text;
    EXPECT_THAT(why, HasSubstr("is no CPU list"));
  }
  EXPECT_FALSE(ParseCpuList("1023", &cpus, &why));
  EXPECT_THAT(why, HasSubstr("CPU 1023"));
}

// Kernels of a device that is the host; each piece's last byte is flipped where `is_wrong`.
template <bool is_wrong>
DeviceStatus EncodeAll(StreamHandle*, const CodecLaunch* launch) {
  const PieceShape shape{static_cast<ElementType>(launch->element),
                         static_cast<PieceRole>(launch->role), launch->tokens, launch->heads,
                         launch->head_dim};
  const auto codec = static_cast<Codec>(launch->codec);
  const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
  for (uint32_t i = 0; i < launch->piece_count; ++i) {
    const auto* engine = reinterpret_cast<const std::byte*>(launch->pieces[i].engine_address);
    auto* slot = reinterpret_cast<std::byte*>(launch->pieces[i].slot_address);
    const Status encoded =
        EncodePiece(codec, shape, {engine, shape.raw_bytes()}, {slot, encoded_bytes});
    if (!encoded.ok()) return {static_cast<int32_t>(encoded.code()), 0, "not encoded"};
    if (is_wrong) slot[encoded_bytes - 1] ^= std::byte{1};
  }
  return {};
}
DeviceStatus DecodeNothing(StreamHandle*, const CodecLaunch*) { return {}; }

TEST(CodecSweep, KernelsAreSetBesideTheHostsBytes) {
  const Result<Device> device = Device::Open(HostDeviceOps(), {});
  ASSERT_TRUE(device.ok());
  const CodecOps right{sizeof(CodecOps), 0, EncodeAll<false>, DecodeNothing};
  const CodecOps wrong{sizeof(CodecOps), 0, EncodeAll<true>, DecodeNothing};
  std::string why;
  for (const CodecOps* codecs : {static_cast<const CodecOps*>(nullptr), &right, &wrong}) {
    CodecSweep sweep;
    ASSERT_TRUE(MeasureCodecs(*device, codecs, 128 * kKiB, 2, &sweep, &why).ok()) << why;
    EXPECT_EQ(sweep.where, codecs == nullptr ? "host" : "cuda");
    EXPECT_EQ(sweep.wrong_bytes, codecs == &wrong ? 3 * 2 * 4u : 0u);  // codecs, roles, pieces
    ASSERT_EQ(sweep.rows.size(), 12u);
    for (const CodecRow& row : sweep.rows) {
      EXPECT_EQ(row.gigabytes_per_second.size(), 2u);
      EXPECT_GT(row.share_of_copy.at(1), 0);
    }
  }
}

}  // namespace
}  // namespace terrace::tools
