// Copies, codecs and turns of keys give the vector registers back clean, at every level that this
// CPU has, whatever the build optimised.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cuda/host/host_copy.h"
#include "cuda/kernels/rope.h"
#include "terrace/checksum.h"
#include "terrace/units.h"
#include "unit/cuda/codec_pieces.h"
#include "vector_registers.h"

namespace terrace {
namespace {

using test::LeftInUse;

class DeviceVectorState : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::TellsVectorState()) GTEST_SKIP() << test::kNoVectorState;
  }
  static std::vector<SimdLevel> Levels() {
    std::vector<SimdLevel> levels;
    for (int level = 0; level <= static_cast<int>(BestSimdLevel()); ++level) {
      levels.push_back(static_cast<SimdLevel>(level));
    }
    return levels;
  }
};

TEST_F(DeviceVectorState, NoCopyLeavesUpperHalvesInUse) {
  std::vector<std::byte> from(kMiB), to(kMiB);
  for (const size_t size :
       {size_t{1}, kKiB + 1, 4 * kKiB, 64 * kKiB, 100 * kKiB + 64, size_t{kMiB}}) {
    SCOPED_TRACE(size);
    const auto source = std::span(from).first(size);
    const auto target = std::span(to).first(size);
    EXPECT_EQ(LeftInUse([&] { CopyBytes(target, source); }), 0u);
    EXPECT_EQ(LeftInUse([&] { CopyRun(to.data(), from.data(), size, from.data()); }), 0u);
    EXPECT_EQ(LeftInUse([&] { FenceRuns(); }), 0u);
    EXPECT_EQ(LeftInUse([&] { CopyAndChecksumPart(target, source, 7); }), 0u);
  }
}

TEST_F(DeviceVectorState, NoCodecLeavesUpperHalvesInUse) {
  for (const ElementType element : kElementTypes) {
    for (const PieceRole role : kPieceRoles) {
      const PieceShape shape = {
          .element = element, .role = role, .tokens = 16, .heads = 3, .head_dim = 96};
      const PieceBytes raw = PieceOf(shape, LikelyValues(shape, 5));
      PieceBytes decoded(raw.size());
      for (const Codec codec : kLossyCodecs) {
        PieceBytes encoded(LayoutOf(codec, shape).encoded_bytes);
        for (const SimdLevel level : Levels()) {
          SCOPED_TRACE(std::string(CodecName(codec)) + " at level " +
                       std::to_string(static_cast<int>(level)));
          EXPECT_EQ(
              LeftInUse([&] { EXPECT_TRUE(EncodePiece(codec, shape, raw, encoded, level).ok()); }),
              0u);
          EXPECT_EQ(LeftInUse([&] { DecodePiece(codec, shape, encoded, decoded, level); }), 0u);
        }
      }
    }
  }
}

TEST_F(DeviceVectorState, NoTurnOfKeysLeavesUpperHalvesInUse) {
  for (const RopePairing pairing : {RopePairing::kNeox, RopePairing::kGptj}) {
    RopeSpec spec = {.pairing = pairing, .rot_dim = 64, .rot_offset = 32};
    for (uint32_t i = 0; i < spec.rot_dim / 2; ++i) spec.inv_freq.push_back(1.0 / (i + 1));
    const RopeTable table(spec, 17);
    for (const ElementType element : kElementTypes) {
      const PieceShape shape = {.element = element, .tokens = 16, .heads = 3, .head_dim = 96};
      const PieceBytes raw = PieceOf(shape, LikelyValues(shape, 5));
      PieceBytes turned(raw.size());
      const TokenRows rows = {turned.data(), raw.size() / shape.tokens};
      for (const Codec codec : {Codec::kRaw, Codec::kInt8}) {
        const PieceBytes piece = codec == Codec::kRaw ? raw : Encoded(codec, shape, raw);
        EXPECT_EQ(LeftInUse([&] { DecodeTurnScatter(codec, shape, piece, &table, rows); }), 0u);
        for (const SimdLevel level : Levels()) {
          SCOPED_TRACE(static_cast<int>(level));
          EXPECT_EQ(
              LeftInUse([&] { DecodeAndTurn(codec, shape, piece, table.view(), rows, level); }),
              0u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
