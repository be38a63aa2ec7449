// Headers of chunks in slots that the CPU reads and in memory that only the device does.
#include "client/paged/chunk_headers.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "short_device.h"
#include "sim/sim_device.h"
#include "terrace/chunk.h"
#include "terrace/units.h"

namespace terrace::client {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 16;
constexpr uint64_t kSlabBytes = 2 * kMiB;
constexpr uint64_t kSlotBytes = 8 * kKiB;

RopeSpec Rope() { return {.rot_dim = 4, .rot_offset = 0, .inv_freq = {1.0, 0.01}}; }

SpaceSpec Space() {
  SpaceSpec space;
  space.block_tokens = kTokens;
  return space;
}

class ChunkHeaderSlots : public testing::Test {
 protected:
  void SetUp() override {
    int32_t fd = -1;
    void* slab = nullptr;
    ASSERT_EQ(device_.ops().create_slab(device_.handle(), kSlabBytes, &fd).code, 0);
    ASSERT_EQ(device_.ops()
                  .map_slab(device_.handle(), fd, kSlabBytes, SlabAccess::kReadWrite, &slab)
                  .code,
              0);
    close(fd);
    slab_ = static_cast<std::byte*>(slab);
  }
  ~ChunkHeaderSlots() override {
    EXPECT_EQ(device_.ops().unmap_slab(device_.handle(), slab_, kSlabBytes).code, 0);
  }
  std::unique_ptr<ChunkHeaders> Make(const RopeSpec& rope, bool reaches_slots = false) {
    return std::move(ChunkHeaders::Create(device_, reaches_slots, Space(), rope)).value();
  }
  // Slots 1 and 3 lie in the device.
  std::vector<PageSlot> Pages(uint32_t count) {
    std::vector<PageSlot> pages;
    for (uint32_t i = 0; i < count; ++i) {
      const bool is_in_device = i % 2 == 1;
      pages.push_back({.page_index = i,
                       .slot = (is_in_device ? slab_ : host_.data()) + i * kSlotBytes,
                       .is_in_device = is_in_device});
    }
    return pages;
  }

  SimDevice sim_{{.seed = 1, .steps_per_call_max = 1000}};  // it is there at the first look or two
  const Device device_{SimDeviceOps(), sim_.handle()};
  std::byte* slab_ = nullptr;
  std::array<std::byte, 8 * kSlotBytes> host_ = {};
  std::string why_;
};

TEST_F(ChunkHeaderSlots, AreReadWhereverTheyLie) {
  const auto headers = Make(Rope());
  std::vector<PageSlot> pages = Pages(4);
  for (uint32_t i = 0; i < 4; ++i) headers->Write(pages[i].slot, 100 * i);
  const std::array<uint32_t, 4> wanted = {0, 1100, 200, 40};
  const std::array<uint32_t, 4> blocks = {4, 5, 6, 7};
  for (int call = 0; call < 2; ++call) {
    ASSERT_TRUE(headers->SetDeltas(wanted, blocks, pages, &why_).ok()) << why_;
    EXPECT_EQ(pages[0].key_delta, 0);
    EXPECT_EQ(pages[1].key_delta, 1000);
    EXPECT_EQ(pages[2].key_delta, 0);
    EXPECT_EQ(pages[3].key_delta, -260);
  }
  const Result<ChunkHeader> written = ChunkHeader::Read({pages[1].slot, kChunkHeaderBytes});
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written->token_count, kTokens);
  EXPECT_EQ(written->rope_digest, Rope().Digest());
}

TEST_F(ChunkHeaderSlots, OfAnotherRopeOrNoneAreNamed) {
  const auto headers = Make(Rope());
  std::vector<PageSlot> pages = Pages(2);
  const std::array<uint32_t, 2> wanted = {0, 0};
  const std::array<uint32_t, 2> blocks = {8, 9};
  headers->Write(pages[0].slot, 0);
  EXPECT_EQ(headers->SetDeltas(wanted, blocks, pages, &why_).code(), StatusCode::kCorrupt);
  EXPECT_THAT(why_, HasSubstr("block 9: its first part is no header of a chunk of 16 tokens"));
  RopeSpec other = Rope();
  other.pairing = RopePairing::kGptj;
  Make(other)->Write(pages[1].slot, 0);
  EXPECT_EQ(headers->SetDeltas(wanted, blocks, pages, &why_).code(), StatusCode::kUnsupported);
  EXPECT_THAT(why_, HasSubstr("block 9: the chunk's keys were made by another rope"));
  ChunkHeader longer = {.token_count = 2 * kTokens, .rope_digest = Rope().Digest()};
  longer.Write(std::span<std::byte, kChunkHeaderBytes>(pages[1].slot, kChunkHeaderBytes));
  EXPECT_EQ(headers->SetDeltas(wanted, blocks, pages, &why_).code(), StatusCode::kCorrupt);
}

// A device that gets on only when it is waited for.
TEST(ChunkHeaders, OfADeviceThatDoesNotAnswerAreNotWaitedForButByTheEnd) {
  SimDevice sim({.seed = 1, .steps_per_call_max = 0});
  const Device device(SimDeviceOps(), sim.handle());
  DeviceBuffer slab =
      std::move(DeviceBuffer::Allocate(device, DeviceMemory::kDevice, kSlotBytes)).value();
  auto headers = std::move(ChunkHeaders::Create(device, false, Space(), Rope())).value();
  headers->Write(slab.address(), 5);
  std::vector<PageSlot> pages = {{.slot = slab.address(), .is_in_device = true}};
  const std::array<uint32_t, 1> wanted = {15}, blocks = {0};
  std::string why;
  EXPECT_EQ(headers->SetDeltas(wanted, blocks, pages, &why).code(), StatusCode::kBusy);
  EXPECT_THAT(why, HasSubstr("headers of chunks were not read"));
  sim.Settle();  // the first one's copy comes late
  EXPECT_EQ(headers->SetDeltas(wanted, blocks, pages, &why).code(), StatusCode::kBusy);
  headers.reset();
  EXPECT_FALSE(sim.Step()) << "a copy to memory that is gone";
}

TEST(ChunkHeaders, AreNotFreedUnderACopyThatNoEventStandsBehind) {
  ShortDevice device;
  DeviceBuffer slab =
      std::move(DeviceBuffer::Allocate(*device.device(), DeviceMemory::kDevice, kSlotBytes))
          .value();
  auto headers = std::move(ChunkHeaders::Create(*device.device(), false, Space(), Rope())).value();
  std::vector<PageSlot> pages = {{.slot = slab.address(), .is_in_device = true}};
  const std::array<uint32_t, 1> wanted = {15}, blocks = {0};
  std::string why;
  device.RefuseRecordings(3);
  EXPECT_EQ(headers->SetDeltas(wanted, blocks, pages, &why).code(), StatusCode::kNoSpace);
  EXPECT_EQ(device.under_way_count(), 1);
  headers.reset();
  EXPECT_EQ(device.freed_under_way_count(), 0);
}

TEST_F(ChunkHeaderSlots, OfKeysWithoutPositionsTurnNothing) {
  const auto headers = Make({}, /*reaches_slots=*/true);
  std::vector<PageSlot> pages = Pages(1);
  headers->Write(pages[0].slot, 7);
  const std::array<uint32_t, 1> wanted = {4000}, blocks = {0};
  ASSERT_TRUE(headers->SetDeltas(wanted, blocks, pages, &why_).ok()) << why_;
  EXPECT_EQ(pages[0].key_delta, 0);
}

}  // namespace
}  // namespace terrace::client
