// Lossy Spaces against a real terraced: what a client stores encoded another loads decoded, exact
// requests never see it, and what cannot be encoded is counted.
#include "terrace/codec.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "client/paged/paged_cache.h"
#include "cuda/host/host_device.h"
#include "integration/process/daemon_process.h"
#include "sim/sim_device.h"
#include "terrace/chunk.h"
#include "terrace/client.h"
#include "unit/cuda/codec_pieces.h"
#include "unit/cuda/coded_pages.h"

namespace terrace::test {
namespace {

using client::PagedCache;

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kParts = 2;
constexpr uint32_t kLayers = 5;

SpaceGroupSpec Model(Codec codec) {
  SpaceSpec spec;
  spec.model = "tiny";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = kLayers;
  spec.kv_heads = 2;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.part_bytes = {2 * 2 * 4096, 3 * 2 * 4096};
  std::string why;
  if (codec != Codec::kRaw) {
    EXPECT_TRUE(ApplyCodec(codec, kParts, &spec, &why).ok()) << why;
  }
  SpaceGroupSpec group;
  group.name = "tiny-" + std::string(CodecName(codec));
  group.members.push_back({.spec = spec});
  return group;
}

SpaceCodec CutOf(Codec codec) {
  SpaceCodec cut;
  std::string why;
  EXPECT_TRUE(SpaceCodec::Of(Model(codec).members[0].spec, &cut, &why).ok()) << why;
  return cut;
}

std::vector<BlockKey> Keys(uint32_t count) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = i + 1, .high = 77});
  return keys;
}

// The engine's bytes of one part.
PieceBytes PartBytes(const SpaceCodec& cut, uint32_t key, uint32_t part) {
  PieceBytes bytes;
  for (uint32_t layer = 0; layer < cut.LayersOf(part); ++layer) {
    for (const PieceShape& shape : {cut.keys, cut.values}) {
      const PieceBytes piece = PieceOf(shape, LikelyValues(shape, key * 100 + part * 10 + layer));
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
  }
  return bytes;
}

// What a reader is to see of it: each piece encoded and decoded.
PieceBytes ThroughCodec(const SpaceCodec& cut, const PieceBytes& part) {
  PieceBytes bytes;
  for (size_t at = 0; at < part.size();) {
    for (const PieceShape& shape : {cut.keys, cut.values}) {
      const PieceBytes piece(part.begin() + static_cast<ptrdiff_t>(at),
                             part.begin() + static_cast<ptrdiff_t>(at + shape.raw_bytes()));
      const PieceBytes back = Decoded(cut.codec, shape, Encoded(cut.codec, shape, piece));
      bytes.insert(bytes.end(), back.begin(), back.end());
      at += shape.raw_bytes();
    }
  }
  return bytes;
}

class LossySpaces : public testing::Test {
 protected:
  void SetUp() override {
    const std::string config =
        daemon_.WriteFile("t.toml", "[daemon]\ndram_bytes = \"64MiB\"\nsegment_bytes = \"2MiB\"\n");
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  std::unique_ptr<Client> Connect() {
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    Result<std::unique_ptr<Client>> client = Client::Create(options);
    if (!client.ok()) return nullptr;
    EXPECT_TRUE((*client)->WaitConnected(kLongUs).ok()) << (*client)->last_error();
    return std::move(client).value();
  }
  static GroupRef Open(Client& client, Codec codec) {
    const Result<GroupRef> group = client.Open(Model(codec), 1);
    EXPECT_TRUE(group.ok()) << client.last_error();
    return group.ok() ? *group : GroupRef();
  }
  static Result<uint32_t> Store(Client& client, GroupRef group, const SpaceCodec& cut,
                                const std::vector<BlockKey>& keys) {
    Result<WriteLease> lease = client.Reserve(group, keys);
    if (!lease.ok()) return lease.status();
    for (uint32_t key = 0; key < keys.size(); ++key) {
      for (uint32_t part = 0; part < kParts; ++part) {
        EXPECT_TRUE(lease->WritePart(key, 0, part, PartBytes(cut, key, part)).ok());
      }
    }
    return client.Commit(*lease);
  }
  static uint64_t PartsRefused(Client& client) {
    const Result<std::string> stats = client.Stats();
    return stats.ok() ? nlohmann::json::parse(*stats)["domain"]["parts_refused"].get<uint64_t>()
                      : ~uint64_t{0};
  }
  static bool BecomesRefused(Client& client, uint64_t count) {
    for (int i = 0; i < 6'000; ++i) {
      if (PartsRefused(client) == count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  DaemonProcess daemon_;
};

TEST_F(LossySpaces, WhatIsStoredEncodedIsLoadedDecodedByAnotherProcess) {
  const std::unique_ptr<Client> writer = Connect(), reader = Connect();
  for (const Codec codec : kLossyCodecs) {
    const SpaceCodec cut = CutOf(codec);
    const std::vector<BlockKey> keys = Keys(3);
    const Result<uint32_t> sealed = Store(*writer, Open(*writer, codec), cut, keys);
    ASSERT_TRUE(sealed.ok()) << writer->last_error();
    ASSERT_EQ(*sealed, 3u);
    const Result<ReadLease> lease = reader->Acquire(Open(*reader, codec), keys);
    ASSERT_TRUE(lease.ok()) << reader->last_error();
    ASSERT_EQ(lease->ready_count(), 3u);
    for (uint32_t block = 0; block < 3; ++block) {
      for (uint32_t part = 0; part < kParts; ++part) {
        ASSERT_EQ(lease->part_bytes(0)[part], cut.RawPartBytes()[part]);
        PieceBytes read(cut.RawPartBytes()[part]);
        ASSERT_TRUE(lease->CopyPart(block, 0, part, read).ok());
        EXPECT_EQ(read, ThroughCodec(cut, PartBytes(cut, block, part))) << CodecName(codec);
      }
    }
    // A slot holds what the codec wrote, and it is smaller.
    EXPECT_LT(lease->slot(0, 0).size(), cut.RawPartBytes()[0] + cut.RawPartBytes()[1]);
    PieceBytes encoded_size(cut.EncodedPartBytes()[0]);
    EXPECT_EQ(lease->CopyPart(0, 0, 0, encoded_size).code(), StatusCode::kInvalid);
  }
}

TEST_F(LossySpaces, KeysOfTheExactSpaceFindNothingThere) {
  const std::unique_ptr<Client> client = Connect();
  const std::vector<BlockKey> keys = Keys(2);
  const GroupRef lossy = Open(*client, Codec::kInt8);
  ASSERT_TRUE(Store(*client, lossy, CutOf(Codec::kInt8), keys).ok());
  EXPECT_EQ(client->Match(lossy, keys)->block_count, 2u);
  EXPECT_EQ(client->Match(Open(*client, Codec::kRaw), keys)->block_count, 0u);
  EXPECT_EQ(client->Match(Open(*client, Codec::kFp8), keys)->block_count, 0u);
}

TEST_F(LossySpaces, AnExactRequestNeverGetsALossyBlock) {
  const std::unique_ptr<Client> client = Connect();
  const std::vector<BlockKey> keys = Keys(2);
  const GroupRef lossy = Open(*client, Codec::kInt8);
  ASSERT_TRUE(Store(*client, lossy, CutOf(Codec::kInt8), keys).ok());
  RequestOptions exact;
  exact.hints.flags = protocol::kHintExact;
  EXPECT_EQ(client->Match(lossy, keys, exact).code(), StatusCode::kUnsupported);
  EXPECT_EQ(client->Acquire(lossy, keys, exact).code(), StatusCode::kUnsupported);
  EXPECT_NE(client->last_error().find("lossy"), std::string::npos) << client->last_error();
  EXPECT_EQ(client->Prefetch(lossy, keys, exact).code(), StatusCode::kUnsupported);
  EXPECT_EQ(client->Reserve(lossy, Keys(3), exact).code(), StatusCode::kUnsupported);
  // Of an exact Space the hint asks nothing.
  EXPECT_EQ(client->Match(Open(*client, Codec::kRaw), keys, exact)->block_count, 0u);
}

TEST_F(LossySpaces, APartWithANaNIsRefusedAndCountedAndItsBlockIsNotThere) {
  const std::unique_ptr<Client> client = Connect();
  const SpaceCodec cut = CutOf(Codec::kInt8);
  const GroupRef group = Open(*client, Codec::kInt8);
  const std::vector<BlockKey> keys = Keys(2);
  {
    Result<WriteLease> lease = client->Reserve(group, keys);
    ASSERT_TRUE(lease.ok()) << client->last_error();
    for (uint32_t part = 0; part < kParts; ++part) {
      ASSERT_TRUE(lease->WritePart(0, 0, part, PartBytes(cut, 0, part)).ok());
    }
    PieceBytes wrong = PartBytes(cut, 1, 0);
    wrong[wrong.size() - 1] = std::byte{0x7F};  // the last value of the last layer becomes a NaN
    wrong[wrong.size() - 2] = std::byte{0xC0};
    EXPECT_EQ(lease->WritePart(1, 0, 0, wrong).code(), StatusCode::kUnsupported);
    EXPECT_TRUE(lease->WritePart(1, 0, 1, PartBytes(cut, 1, 1)).ok());
    const Result<uint32_t> sealed = client->Commit(*lease);
    ASSERT_TRUE(sealed.ok()) << client->last_error();
    EXPECT_EQ(*sealed, 1u);
    EXPECT_EQ(PartsRefused(*client), 1u);
    // Refused after the last Commit: told with the end of the lease.
    EXPECT_EQ(lease->WritePart(1, 0, 0, wrong).code(), StatusCode::kUnsupported);
  }
  EXPECT_TRUE(BecomesRefused(*client, 2));
  EXPECT_EQ(client->Match(group, keys)->block_count, 1u);
  // The exact Space takes it as it is.
  const GroupRef exact = Open(*client, Codec::kRaw);
  Result<WriteLease> lease = client->Reserve(exact, keys);
  ASSERT_TRUE(lease.ok()) << client->last_error();
  PieceBytes wrong(cut.RawPartBytes()[0], std::byte{0xFF});
  EXPECT_TRUE(lease->WritePart(0, 0, 0, wrong).ok());
}

// Pages of one layout are encoded on their way to slots, and decoded into another's.
class LossyPages : public LossySpaces {
 protected:
  static constexpr CacheShape kShape = {.layer_count = kLayers,
                                        .page_tokens = 16,
                                        .head_count = 2,
                                        .head_bytes = 128,
                                        .page_count = 6};

  std::unique_ptr<PagedCache> CacheOf(const Device& device, const TestCache& cache, Codec codec) {
    std::string why;
    Result<std::unique_ptr<PagedCache>> paged = PagedCache::Create(
        device, {.layout = cache.layout, .space = Model(codec).members[0].spec}, &why);
    EXPECT_TRUE(paged.ok()) << why;
    return std::move(paged).value();
  }
  Status Store(Client& client, PagedCache& cache, const WriteLease& lease,
               const std::vector<uint64_t>& pages) {
    std::string why;
    auto store = cache.Store(lease, {.page_indexes = pages}, KvWritten::Already(), &why);
    EXPECT_TRUE(store.ok()) << why << client.last_error();
    return (*store)->Wait(kLongUs);
  }
  void RoundTrip(const Device& device, Codec codec) {
    SCOPED_TRACE(CodecName(codec));
    const std::unique_ptr<Client> client = Connect();
    const GroupRef group = Open(*client, codec);
    TestCache from = MakeFiniteCache("hnd_planes_outer", kShape, 1);
    TestCache to = MakeFiniteCache("kv_by_token", kShape, 2);
    TestCache twin = MakeFiniteCache("kv_by_token", kShape, 2);
    const std::vector<BlockKey> keys = Keys(3);
    const std::vector<uint64_t> pages = {5, 0, 3};
    const auto stores = CacheOf(device, from, codec);
    const auto loads = CacheOf(device, to, codec);
    Result<WriteLease> write = client->Reserve(group, keys);
    ASSERT_TRUE(write.ok()) << client->last_error();
    ASSERT_TRUE(Store(*client, *stores, *write, pages).ok());
    ASSERT_EQ(*client->Commit(*write), 3u);
    const Result<ReadLease> read = client->Acquire(group, keys);
    ASSERT_TRUE(read.ok() && client->WaitReady(*read, 3, kLongUs).ok());
    const NaiveCoded naive(from.layout, CutOf(codec)), naive_twin(twin.layout, CutOf(codec));
    for (uint32_t block = 0; block < 3; ++block) {
      ASSERT_TRUE(naive.IsEncoded(pages[block], read->slot(block, 0).data())) << block;
      naive_twin.Decode(pages[2 - block], read->slot(block, 0).data());
    }
    std::string why;
    const std::vector<uint64_t> into(pages.rbegin(), pages.rend());
    auto load = loads->Load(*read, {.page_indexes = into}, DestinationFree::Already(), &why);
    ASSERT_TRUE(load.ok()) << why;
    ASSERT_TRUE((*load)->Wait(kLongUs).ok());
    EXPECT_TRUE(to.memory == twin.memory);
  }
};

TEST_F(LossyPages, AreEncodedAndDecodedOnTheHost) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {.worker_count = 2})).value();
  for (const Codec codec : kLossyCodecs) RoundTrip(device, codec);
}

TEST_F(LossyPages, AreEncodedAndDecodedOnASimulatedDevice) {
  SimDevice sim({.seed = 7, .needs_registration = true});
  const Device device(SimDeviceOps(), sim.handle());
  for (const Codec codec : kLossyCodecs) RoundTrip(device, codec);
  EXPECT_EQ(sim.stray_count(), 0u);
}

TEST_F(LossyPages, OnlyBlocksThatTheCodecTakesAreThere) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Codec::kInt8);
  TestCache cache = MakeFiniteCache("nhd_packed", kShape, 1);
  const uint16_t nan = 0x7FC0;
  for (const uint32_t layer : {3, 4}) {  // of the second part both
    std::memcpy(VectorInPage(cache.layout, layer, 1, 2, 15, 1), &nan, sizeof(nan));
  }
  const auto stores = CacheOf(device, cache, Codec::kInt8);
  Result<WriteLease> lease = client->Reserve(group, Keys(3));
  ASSERT_TRUE(lease.ok()) << client->last_error();
  EXPECT_EQ(Store(*client, *stores, *lease, {4, 2, 0}).code(), StatusCode::kUnsupported);
  EXPECT_EQ(*client->Commit(*lease), 2u);
  EXPECT_EQ(PartsRefused(*client), 1u);
  EXPECT_EQ(client->Match(group, Keys(3))->block_count, 1u) << "the prefix before it";
  // Once it holds numbers it is stored by the same lease.
  const TestCache finite = MakeFiniteCache("nhd_packed", kShape, 1);
  std::ranges::copy(finite.memory, cache.memory.begin());
  EXPECT_TRUE(Store(*client, *stores, *lease, {client::kNoPage, 2}).ok());
  EXPECT_EQ(*client->Commit(*lease), 1u);
  EXPECT_EQ(client->Match(group, Keys(3))->block_count, 3u);
  EXPECT_EQ(PartsRefused(*client), 1u);
}

TEST_F(LossyPages, APageOfTwoBlocksIsRefusedOfBoth) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Codec::kFp8);
  TestCache cache = MakeFiniteCache("nhd_packed", kShape, 1);
  const uint16_t nan = 0x7FC0;
  std::memcpy(VectorInPage(cache.layout, 0, 0, 2, 0, 0), &nan, sizeof(nan));
  const auto stores = CacheOf(device, cache, Codec::kFp8);
  Result<WriteLease> lease = client->Reserve(group, Keys(3));
  ASSERT_TRUE(lease.ok()) << client->last_error();
  EXPECT_EQ(Store(*client, *stores, *lease, {2, 4, 2}).code(), StatusCode::kUnsupported);
  EXPECT_EQ(*client->Commit(*lease), 1u);
  EXPECT_EQ(PartsRefused(*client), 2u);
}

// A Commit tells of 255 at most, the end of the lease of the others.
TEST_F(LossyPages, EveryRefusedPartIsCounted) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Codec::kInt4);
  TestCache cache = MakeFiniteCache("nhd_packed", kShape, 1);
  const uint16_t nan = 0x7FC0;
  for (const uint32_t layer : {0, 4}) {  // of either part one
    std::memcpy(VectorInPage(cache.layout, layer, 0, 2, 0, 0), &nan, sizeof(nan));
  }
  const auto stores = CacheOf(device, cache, Codec::kInt4);
  constexpr uint32_t kRefusedBlocks = 80, kStores = 2;
  std::vector<uint64_t> pages(kRefusedBlocks + 1, 2);
  pages[0] = 4;
  {
    Result<WriteLease> lease = client->Reserve(group, Keys(kRefusedBlocks + 1));
    ASSERT_TRUE(lease.ok()) << client->last_error();
    for (uint32_t i = 0; i < kStores; ++i) {
      EXPECT_EQ(Store(*client, *stores, *lease, pages).code(), StatusCode::kUnsupported);
    }
    EXPECT_EQ(*client->Commit(*lease), 1u);
  }
  EXPECT_TRUE(BecomesRefused(*client, kParts * kRefusedBlocks * kStores)) << PartsRefused(*client);
}

// Whose block would be read by nobody, and its key taken.
TEST_F(LossySpaces, AChunkIsNotTakenWithoutItsHeader) {
  SpaceGroupSpec model = Model(Codec::kRaw);
  model.members[0].spec.layout = "chunk-nhd";
  model.members[0].spec.part_bytes = {kChunkHeaderBytes, 5 * 2 * 4096};
  const std::unique_ptr<Client> client = Connect();
  const Result<GroupRef> group = client->Open(model, 1);
  ASSERT_TRUE(group.ok()) << client->last_error();
  Result<WriteLease> lease = client->Reserve(*group, Keys(1));
  ASSERT_TRUE(lease.ok()) << client->last_error();
  std::vector<std::byte> header(kChunkHeaderBytes);
  EXPECT_EQ(lease->WritePart(0, 0, 0, header).code(), StatusCode::kInvalid);
  EXPECT_NE(client->last_error().find("the header of a chunk"), std::string::npos);
  EXPECT_EQ(lease->ChecksumWrittenPart(0, 0, 0).code(), StatusCode::kInvalid) << "in its slot";
  EXPECT_TRUE(lease->WritePart(0, 0, 1, std::vector<std::byte>(5 * 2 * 4096)).ok());
  const auto committed = [&] {
    const Result<uint32_t> sealed = client->Commit(*lease);
    return sealed.ok() ? *sealed : 0;
  };
  EXPECT_EQ(committed(), 0u) << "a part is missing";
  ChunkHeader{.first_token_position = 16, .token_count = 16}.Write(
      std::span<std::byte, kChunkHeaderBytes>(header.data(), kChunkHeaderBytes));
  EXPECT_TRUE(lease->WritePart(0, 0, 0, header).ok());
  EXPECT_EQ(committed(), 1u) << client->last_error();
}

TEST_F(LossySpaces, ACommitThatReleasesTellsOfRefusedPartsToo) {
  const std::unique_ptr<Client> client = Connect();
  const SpaceCodec cut = CutOf(Codec::kInt4);
  Result<WriteLease> lease = client->Reserve(Open(*client, Codec::kInt4), Keys(1));
  ASSERT_TRUE(lease.ok()) << client->last_error();
  const PieceBytes wrong(cut.RawPartBytes()[0], std::byte{0xFF});
  EXPECT_EQ(lease->WritePart(0, 0, 0, wrong).code(), StatusCode::kUnsupported);
  RequestOptions options;
  options.flags = protocol::kCommitRelease;
  ASSERT_TRUE(client->Commit(*lease, options).ok()) << client->last_error();
  EXPECT_EQ(PartsRefused(*client), 1u);
}

}  // namespace
}  // namespace terrace::test
