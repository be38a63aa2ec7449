// Blocks in the memory of a device: how they get there and back by work orders, and who may read
// them there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/host_device.h"
#include "daemon/domain_device.h"
#include "store_fixture.h"

namespace terrace {
namespace {

using protocol::OrderKind;
using protocol::SpanState;
using World = StoreWorld;

constexpr uint64_t kSlabBytes = 2 * kMiB;
constexpr uint32_t kSlabs = 2;

// A store with a device, and its clients' side of work orders in the test's hand.
class Device : public ::testing::Test {
 protected:
  explicit Device(WorldOptions options = {}) {
    tier = std::make_unique<HbmTier>(
        HbmTier::Options{.slab_bytes = kSlabBytes,
                         .slab_count = kSlabs,
                         .locate = [this](const std::byte* slot) { return ArenaAddress(slot); },
                         .now_us = [this] { return w == nullptr ? 0 : w->clock.NowUs(); },
                         .order_deadline_us = 500'000});
    options.device = {.tier = tier.get(), .device = "test", .hits_min = 2};
    w = std::make_unique<World>(options);
    a = w->Open();
    group = w->OpenSimple(a);
    Attach(a);
  }
  ~Device() override { w->Run(); }

  void Attach(SessionId session) {
    protocol::DeviceAttachReply reply;
    std::string why;
    ASSERT_TRUE(w->store->AttachDevice(session, "test", &reply, &why).ok()) << why;
    EXPECT_EQ(reply.slab_count, kSlabs);
    w->Run();
  }
  SlotAddress ArenaAddress(const std::byte* slot) {
    for (uint32_t segment = 0; segment < w->options().segments_max; ++segment) {
      const std::byte* const base = w->arenas[0]->SegmentBase(segment);
      if (slot < base || slot >= base + kSegmentBytesMin) continue;
      return {segment, static_cast<uint32_t>((slot - base) / kArenaPageBytes)};
    }
    return {};
  }
  std::byte* DeviceBytes(const SlotAddress& slot) {
    return &slabs[(slot.segment - protocol::kDeviceSegmentFirst) * kSlabBytes +
                  slot.page * kArenaPageBytes];
  }

  // ---- a client's side ----
  sim::RecordingListener::Ordered TakeOrder() {
    EXPECT_FALSE(w->listener.work_orders.empty());
    if (w->listener.work_orders.empty()) return {};
    const auto order = w->listener.work_orders.front();
    w->listener.work_orders.erase(w->listener.work_orders.begin());
    return order;
  }
  void Copy(const sim::RecordingListener::Ordered& ordered) {
    std::byte* const device = DeviceBytes(ordered.order.device);
    std::byte* const arena = w->Address(ordered.session, ordered.order.arena);
    const bool is_promotion = ordered.order.kind == OrderKind::kPromote;
    std::memcpy(is_promotion ? device : arena, is_promotion ? arena : device,
                ordered.order.length_bytes);
  }
  StatusCode Answer(const sim::RecordingListener::Ordered& ordered,
                    StatusCode status = StatusCode::kOk) {
    std::vector<Checksum> roots;
    if (ordered.order.kind == OrderKind::kPromote && status == StatusCode::kOk) {
      const std::byte* part = DeviceBytes(ordered.order.device);
      DomainSecret secret;
      for (size_t i = 0; i < secret.size(); ++i) secret[i] = std::byte(i);
      for (uint32_t p = 0; p < ordered.part_bytes.size(); ++p) {
        const uint64_t seed = ChecksumSeed(secret, {.space = ordered.order.space,
                                                    .key = ordered.order.key,
                                                    .commit_id = ordered.order.commit_id,
                                                    .part_index = p});
        roots.push_back(ChecksumPart({part, ordered.part_bytes[p]}, seed));
        part += RoundUp(ordered.part_bytes[p], kArenaPageBytes);
      }
    }
    const protocol::OrderDoneRequest done{.order_id = ordered.order.order_id,
                                          .generation = ordered.order.generation,
                                          .checksum_count = static_cast<uint32_t>(roots.size()),
                                          .status = static_cast<uint8_t>(status)};
    const Status told = w->store->OrderDone(ordered.session, done, roots);
    w->Run();
    return told.code();
  }
  void Execute() {
    const auto order = TakeOrder();
    Copy(order);
    EXPECT_EQ(Answer(order), StatusCode::kOk);
  }
  void ExecuteAll() {
    while (!w->listener.work_orders.empty()) Execute();
  }

  // ---- stories ----
  AcquireResult Read(SessionId session, uint64_t chain, uint32_t count = 1) {
    const AcquireResult got =
        w->Acquire(session, group, World::Keys(count, chain), protocol::kAcquireDevice);
    w->Run();
    return got;
  }
  void ReadAndRelease(SessionId session, uint64_t chain, uint32_t count = 1) {
    const AcquireResult got = Read(session, chain, count);
    ASSERT_EQ(got.reply.block_count, count);
    EXPECT_EQ(w->Release(session, got.reply.token), StatusCode::kOk);
    w->Run();
  }
  // Stored and hit until it lies on the device, too.
  void PutOnDevice(uint64_t chain, uint32_t count = 1) {
    ASSERT_EQ(w->Put(a, group, World::Keys(count, chain)), count);
    w->Run();
    for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, chain, count);
    ExecuteAll();
  }
  // Everything else leaves DRAM.
  void Flood() {
    for (uint64_t chain = 90; chain < 98; ++chain) w->Put(a, group, World::Keys(1, chain));
    w->Run();
  }
  bool HoldsOnDevice(uint64_t chain, const SlotAddress& slot) {
    const std::vector<std::byte> bytes = World::Content(World::Keys(1, chain)[0], 0, 0, kSlotBytes);
    return std::memcmp(DeviceBytes(slot), bytes.data(), bytes.size()) == 0;
  }
  uint8_t TierMask(uint64_t chain) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = World::Keys(1, chain);
    EXPECT_TRUE(w->store->Query(w->Query(a, group, keys), &blocks).ok());
    return blocks[0].tier_mask;
  }
  static bool IsOnDevice(const SlotAddress& slot) {
    return slot.has_bytes() && slot.segment >= protocol::kDeviceSegmentFirst;
  }
  uint64_t UsedBytes() { return tier->stats().used_bytes; }

  static constexpr uint8_t kHbm = 1 << 0, kDram = 1 << 1, kNvme = 1 << 2;

  std::vector<std::byte> slabs = std::vector<std::byte>(kSlabs * kSlabBytes);
  std::unique_ptr<HbmTier> tier;
  std::unique_ptr<World> w;
  SessionId a = 0;
  uint32_t group = 0;
};

TEST_F(Device, ABlockIsCopiedThereAtItsSecondHit) {
  w->Put(a, group, World::Keys(1, 1));
  ReadAndRelease(a, 1);
  EXPECT_TRUE(w->listener.work_orders.empty());
  ReadAndRelease(a, 1);
  const auto order = TakeOrder();
  EXPECT_EQ(order.session, a);
  EXPECT_EQ(order.order.kind, OrderKind::kPromote);
  EXPECT_EQ(order.order.length_bytes, kSlotBytes);
  EXPECT_EQ(TierMask(1), kDram) << "not before the copy is there";
  Copy(order);
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(TierMask(1), kHbm | kDram);
}

TEST_F(Device, WhoAttachedItIsAnsweredWithBytesThere) {
  PutOnDevice(1);
  const AcquireResult got = Read(a, 1);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].tier, TierKind::kHbm);
  EXPECT_EQ(got.spans[0].state, SpanState::kReady);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
  EXPECT_EQ(w->Stats().device->blocks_served, 1u);
}

TEST_F(Device, WhoDidNotAttachOrAskIsAnsweredFromDram) {
  PutOnDevice(1);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const AcquireResult stranger = Read(b, 1);
  ASSERT_EQ(stranger.reply.block_count, 1u);
  EXPECT_FALSE(IsOnDevice(stranger.slots[0]));
  EXPECT_EQ(stranger.spans[0].tier, TierKind::kDram);
  const AcquireResult unasked = w->Acquire(a, group, World::Keys(1, 1));
  EXPECT_FALSE(IsOnDevice(unasked.slots[0]));
}

TEST_F(Device, ABlockThatLeftDramComesBackByAnOrder) {
  PutOnDevice(1);
  Flood();
  ASSERT_EQ(TierMask(1), kHbm);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const auto keys = World::Keys(1, 1);
  const AcquireResult got = w->Acquire(b, group, keys);
  ASSERT_EQ(got.reply.block_count, 1u);
  EXPECT_EQ(got.spans[0].state, SpanState::kComing);
  EXPECT_EQ(got.spans[0].tier, TierKind::kHbm);
  const auto order = TakeOrder();
  EXPECT_EQ(order.order.kind, OrderKind::kDemote);
  EXPECT_EQ(order.session, a) << "of the device's clients";
  Copy(order);
  EXPECT_TRUE(w->listener.completions.empty());
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  ASSERT_EQ(w->listener.completions.size(), 1u);
  EXPECT_EQ(w->listener.completions[0].status, StatusCode::kOk);
  EXPECT_TRUE(w->Holds(b, group, keys[0], 0, got.slots[0]));
}

TEST_F(Device, WrongBytesAreNeverPublishedThere) {
  w->Put(a, group, World::Keys(1, 1));
  for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, 1);
  const auto order = TakeOrder();
  Copy(order);
  DeviceBytes(order.order.device)[77] ^= std::byte{1};
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(TierMask(1), kDram);
  EXPECT_EQ(w->Stats().device->orders.wrong, 1u);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Device, WrongBytesThatComeBackAreAMiss) {
  PutOnDevice(1);
  Flood();
  const SessionId b = w->Open();
  w->OpenSimple(b);
  w->Acquire(b, group, World::Keys(1, 1));
  const auto order = TakeOrder();
  Copy(order);
  w->Address(b, order.order.arena)[5] ^= std::byte{1};
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  ASSERT_EQ(w->listener.completions.size(), 1u);
  EXPECT_EQ(w->listener.completions[0].status, StatusCode::kNotFound);
  EXPECT_EQ(w->Stats().blocks_corrupt, 1u);
  EXPECT_EQ(w->MatchCount(b, group, World::Keys(1, 1)), 0u);
}

TEST_F(Device, AnAnswerAfterTheDeadlineCountsForNothing) {
  w->Put(a, group, World::Keys(1, 1));
  for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, 1);
  const auto order = TakeOrder();
  w->Advance(3'000'000);
  EXPECT_GT(UsedBytes(), 0u) << "its executor may still write there";
  EXPECT_EQ(w->Stats().device->orders.late, 1u);
  Copy(order);
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(TierMask(1), kDram);
  EXPECT_EQ(UsedBytes(), 0u);
  EXPECT_EQ(Answer(order), StatusCode::kGone) << "an order ends once";
}

TEST_F(Device, AnAnswerOfAnotherGenerationOrSessionIsNotBelieved) {
  w->Put(a, group, World::Keys(1, 1));
  for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, 1);
  const SessionId b = w->Open();
  Attach(b);
  const auto order = TakeOrder();
  Copy(order);
  auto forged = order;
  ++forged.order.generation;
  EXPECT_EQ(Answer(forged), StatusCode::kGone);
  forged = order;
  forged.session = b;
  EXPECT_EQ(Answer(forged), StatusCode::kGone);
  EXPECT_EQ(TierMask(1), kDram);
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(TierMask(1), kHbm | kDram);
}

TEST_F(Device, AHungUpExecutorKeepsItsOrderUntilItIsDead) {
  PutOnDevice(1);
  Flood();
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const AcquireResult got = w->Acquire(b, group, World::Keys(1, 1));
  const auto order = TakeOrder();
  ASSERT_EQ(order.session, a);
  Attach(b);
  w->store->HangUp(a);
  w->Run();
  EXPECT_TRUE(w->listener.work_orders.empty()) << "it may still write to the slot";
  w->store->ProofOfDeath(a);
  w->Run();
  const auto again = TakeOrder();
  EXPECT_EQ(again.session, b);
  EXPECT_EQ(again.order.order_id, order.order.order_id);
  Copy(again);
  EXPECT_EQ(Answer(again), StatusCode::kOk);
  EXPECT_TRUE(w->Holds(b, group, World::Keys(1, 1)[0], 0, got.slots[0]));
  EXPECT_EQ(w->Stats().device->orders.reissued, 1u);
}

TEST_F(Device, WithNoClientLeftItsBlocksWaitForTheNext) {
  PutOnDevice(1);
  Flood();
  w->store->ProofOfDeath(a);
  w->Run();
  const SessionId b = w->Open();
  w->OpenSimple(b);
  EXPECT_EQ(w->MatchCount(b, group, World::Keys(1, 1)), 0u);
  EXPECT_GT(UsedBytes(), 0u);
  Attach(b);
  EXPECT_EQ(w->MatchCount(b, group, World::Keys(1, 1)), 1u);
  const AcquireResult got = Read(b, 1);
  ASSERT_EQ(got.reply.block_count, 1u);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
}

TEST_F(Device, WhatIsReadThereIsNotReused) {
  PutOnDevice(1);
  const AcquireResult got = Read(a, 1);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  protocol::EvictReply evicted;
  uint64_t cursor = 0;
  const auto keys = World::Keys(1, 1);
  EXPECT_TRUE(w->store->Evict(w->Query(a, group, keys), &cursor, &evicted).ok());
  EXPECT_EQ(evicted.skipped_count, 1u);
  // More than the device holds passes through it.
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
  EXPECT_EQ(TierMask(1) & kHbm, kHbm);
  EXPECT_EQ(w->Release(a, got.reply.token), StatusCode::kOk);
  for (uint64_t chain = 40; chain < 70; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1) & kHbm, 0) << "unheld it makes room";
}

TEST_F(Device, AReadyRunThatIsHeldKeepsWhatOfItLiesThere) {
  PutOnDevice(1, 4);
  const auto keys = World::Keys(6, 1);
  ASSERT_EQ(w->Put(a, group, keys), 2u) << "only in DRAM";
  w->Run();
  KeysQuery query = w->Query(a, group, keys);
  query.member_mask = 0;
  AcquireResult held;
  ASSERT_TRUE(w->store->AcquireReady(query, &held).ok());
  ASSERT_EQ(held.walk.walked_count, 6u);
  w->Check();
  // More than the device holds passes through it.
  for (uint64_t chain = 10; chain < 30; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1), kHbm | kDram);
}

TEST_F(Device, AReadyRunThatIsLetGoMakesRoomThere) {
  PutOnDevice(1, 4);
  const auto keys = World::Keys(6, 1);
  ASSERT_EQ(w->Put(a, group, keys), 2u) << "only in DRAM";
  w->Run();
  const AcquireResult got = w->Acquire(a, group, keys);
  ASSERT_EQ(got.reply.block_count, 6u);
  EXPECT_EQ(w->Release(a, got.reply.token), StatusCode::kOk);
  w->Run();
  w->Check();
  for (uint64_t chain = 10; chain < 60; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1) & kHbm, 0);
}

TEST_F(Device, AnErasedBlockStaysThereForItsReaders) {
  PutOnDevice(1);
  const AcquireResult got = Read(a, 1);
  uint64_t cursor = 0;
  do {
    ASSERT_TRUE(w->store->Reset(a, group, &cursor).ok());
  } while (cursor != 0);
  w->Run();
  EXPECT_EQ(w->MatchCount(a, group, World::Keys(1, 1)), 0u);
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
  const uint64_t used_before = UsedBytes();
  EXPECT_EQ(w->Release(a, got.reply.token), StatusCode::kOk);
  w->Run();
  EXPECT_EQ(UsedBytes(), used_before - kSlotBytes);
}

TEST_F(Device, ADeadReadersBlockIsFencedUntilItIsProven) {
  PutOnDevice(1);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  Attach(b);
  const AcquireResult got = Read(b, 1);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  w->store->HangUp(b);
  w->Run();
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0])) << "its copies may still be under way";
  w->store->ProofOfDeath(b);
  w->Run();
  for (uint64_t chain = 40; chain < 70; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1) & kHbm, 0);
}

TEST_F(Device, AJoinerIsAnsweredThereIfItCanReadThere) {
  PutOnDevice(1);
  Flood();
  const AcquireResult got = Read(a, 1);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  const SessionId b = w->Open();
  const SessionId c = w->Open();
  w->OpenSimple(b);
  w->OpenSimple(c);
  Attach(b);
  const auto join = [&](SessionId session) {
    AcquireResult joined;
    const protocol::JoinRequest request{.token = got.reply.token,
                                        .member_mask = ~uint64_t{0},
                                        .group_handle = group,
                                        .flags = protocol::kAcquireDevice};
    EXPECT_TRUE(w->store->JoinRead(session, 900 + session, request, &joined).ok());
    return joined;
  };
  const AcquireResult with = join(b);
  ASSERT_EQ(with.reply.block_count, 1u);
  EXPECT_EQ(with.slots[0], got.slots[0]);
  EXPECT_EQ(join(c).reply.block_count, 0u) << "there is nothing of it that it could read";
}

// A scheduler without a device asks, a rank with one reads: that is how blocks come there.
TEST_F(Device, AJoinerReadsThereWhatASchedulerWithoutADeviceAcquired) {
  const SessionId scheduler = w->Open();
  w->OpenSimple(scheduler);
  const auto keys = World::Keys(1, 1);
  w->Put(a, group, keys);
  LeaseToken token;
  const auto acquire_and_join = [&] {
    const AcquireResult got = w->Acquire(scheduler, group, keys);
    token = got.reply.token;
    AcquireResult joined;
    const protocol::JoinRequest request{.token = token,
                                        .member_mask = ~uint64_t{0},
                                        .group_handle = group,
                                        .flags = protocol::kAcquireDevice};
    EXPECT_TRUE(w->store->JoinRead(a, 900, request, &joined).ok());
    EXPECT_FALSE(IsOnDevice(got.slots[0])) << "the scheduler could not read it there";
    w->Run();
    return joined;
  };
  const auto release = [&] {
    EXPECT_EQ(w->Release(a, token), StatusCode::kOk);
    EXPECT_EQ(w->Release(scheduler, token), StatusCode::kOk);
    w->Run();
  };
  for (int hit = 0; hit < 2; ++hit) {
    EXPECT_TRUE(w->listener.work_orders.empty()) << "at its second hit";
    EXPECT_FALSE(IsOnDevice(acquire_and_join().slots[0]));
    release();
  }
  ExecuteAll();
  EXPECT_EQ(TierMask(1), kHbm | kDram);
  const AcquireResult joined = acquire_and_join();
  ASSERT_EQ(joined.reply.block_count, 1u);
  EXPECT_EQ(joined.spans[0].tier, TierKind::kHbm);
  ASSERT_TRUE(IsOnDevice(joined.slots[0]));
  EXPECT_EQ(w->Stats().device->blocks_served, 1u);
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, joined.slots[0])) << "a lease pins what its joiners were told of";
  release();
  for (uint64_t chain = 40; chain < 70; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1) & kHbm, 0);
}

TEST_F(Device, AnExecutorThatNeverManagesGetsNoMoreOrders) {
  w->Put(a, group, World::Keys(1, 1));
  ReadAndRelease(a, 1);
  for (uint32_t tries = 0; tries < HbmTier::Options().failures_max; ++tries) {
    EXPECT_EQ(w->Stats().device->orders.executors, 1u);
    ReadAndRelease(a, 1);
    EXPECT_EQ(Answer(TakeOrder(), StatusCode::kNoSpace), StatusCode::kOk);
  }
  EXPECT_EQ(w->Stats().device->orders.executors, 0u);
  ReadAndRelease(a, 1);
  EXPECT_TRUE(w->listener.work_orders.empty());
}

TEST_F(Device, ABlockSpoiltInDramIsForgottenAndTheDeviceGoesOn) {
  const uint32_t spoilt_count = HbmTier::Options().failures_max + 1;
  for (uint64_t chain = 1; chain <= spoilt_count; ++chain) {
    w->Put(a, group, World::Keys(1, chain));
    for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, chain);
    const auto order = TakeOrder();
    w->Address(order.session, order.order.arena)[9] ^= std::byte{1};
    Copy(order);
    EXPECT_EQ(Answer(order), StatusCode::kOk);
    EXPECT_EQ(w->MatchCount(a, group, World::Keys(1, chain)), 0u);
  }
  EXPECT_EQ(w->Stats().blocks_corrupt, spoilt_count);
  EXPECT_EQ(w->Stats().device->orders.executors, 1u);
}

TEST_F(Device, OrdersThatNobodyTakesEndAtTheirDeadline) {
  for (uint64_t chain = 1; chain < 7; ++chain) w->Put(a, group, World::Keys(1, chain));
  for (int hit = 0; hit < 2; ++hit) {
    for (uint64_t chain = 1; chain < 7; ++chain) ReadAndRelease(a, chain);
  }
  EXPECT_EQ(w->listener.work_orders.size(), 4u) << "orders_per_executor_max";
  EXPECT_EQ(w->Stats().device->orders.queued, 2u);
  w->Advance(3'000'000);
  EXPECT_EQ(w->Stats().device->orders.queued, 0u);
  EXPECT_EQ(UsedBytes(), 4 * kSlotBytes) << "those with the client are not over";
  w->listener.work_orders.clear();
  w->store->ProofOfDeath(a);
  w->Advance(3'000'000);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Device, AnotherDeviceIsRefused) {
  protocol::DeviceAttachReply reply;
  std::string why;
  EXPECT_EQ(w->store->AttachDevice(a, "GPU-1", &reply, &why).code(), StatusCode::kNotFound);
  EXPECT_NE(why.find("device 'test'"), why.npos) << why << ": which one it is";
  World plain;
  EXPECT_EQ(plain.store->AttachDevice(plain.Open(), "host", &reply, &why).code(),
            StatusCode::kUnsupported);
  EXPECT_NE(why.find("hbm.capacity_bytes"), why.npos) << why;
}

// Room for a slab comes when its predecessor's clients have unmapped theirs, or never.
TEST(DomainDeviceSlabs, WaitForRoomSoOftenAndNoMore) {
  static uint32_t refused_count;
  DeviceOps ops = HostDeviceOps();
  ops.create_slab = [](DeviceHandle* device, uint64_t byte_count, int32_t* fd) -> DeviceStatus {
    if (refused_count == 0) return HostDeviceOps().create_slab(device, byte_count, fd);
    --refused_count;
    return {static_cast<int32_t>(StatusCode::kNoSpace), 2, "out of memory, the driver says"};
  };
  const terrace::Device device = std::move(terrace::Device::Open(ops)).value();
  uint32_t pause_count = 0;
  const DomainDevice::Options options{.domain_name = "d",
                                      .hbm = {.slab_bytes = kSlabBytes},
                                      .device_name = "cuda:GPU-1",
                                      .slab_count = 2,
                                      .retries_max = 3,
                                      .pause = [&] { ++pause_count; }};
  std::string why;
  refused_count = 3;
  DomainDevice patient(options);
  EXPECT_TRUE(patient.Open(device, &why).ok()) << why;
  EXPECT_EQ(pause_count, 3u);
  EXPECT_EQ(patient.slab_fds().size(), 2u);
  refused_count = 4;
  DomainDevice hopeless(options);
  EXPECT_EQ(hopeless.Open(device, &why).code(), StatusCode::kNoSpace);
  for (const char* word : {"domain d", "slab 1 of 2", "cuda:GPU-1",
                           "out of memory, the driver says", "lower hbm.capacity_bytes"}) {
    EXPECT_NE(why.find(word), why.npos) << why;
  }
}

// With drives, too: what is on the device is a copy beside the others.
class DeviceAndDrive : public Device {
 protected:
  DeviceAndDrive() : Device({.lower_tier_count = 1}) {}
};

TEST_F(DeviceAndDrive, AMissingClientCostsTheDriveNothing) {
  PutOnDevice(1);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  ASSERT_EQ(TierMask(1), kHbm | kNvme);
  w->store->ProofOfDeath(a);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const AcquireResult got = w->Acquire(b, group, World::Keys(1, 1));
  ASSERT_EQ(got.reply.block_count, 1u);
  EXPECT_EQ(got.spans[0].tier, TierKind::kNvme);
  w->Advance(100'000);
  EXPECT_TRUE(w->Holds(b, group, World::Keys(1, 1)[0], 0, got.slots[0]));
}

TEST_F(DeviceAndDrive, WhatLeavesDramGoesToTheDriveThoughTheDeviceHasIt) {
  w->faults[0]->SetRate(sim::Fault::kWriteFails, 1'000'000);
  PutOnDevice(1);
  w->Advance(100'000);
  ASSERT_EQ(TierMask(1), kHbm | kDram);
  w->faults[0]->SetRate(sim::Fault::kWriteFails, 0);
  Flood();
  w->Advance(100'000);
  EXPECT_EQ(TierMask(1), kHbm | kNvme);
}

TEST_F(DeviceAndDrive, AClientThatHangsHidesNeitherTheDriveNorTheDevice) {
  for (const uint64_t chain : {1, 2}) {
    PutOnDevice(chain);
    w->Advance(100'000);
  }
  Flood();
  w->Advance(100'000);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  ASSERT_EQ(w->Acquire(b, group, World::Keys(1, 1)).spans[0].tier, TierKind::kHbm);
  w->Advance(3'000'000);  // and no answer
  const AcquireResult got = w->Acquire(b, group, World::Keys(1, 2));
  ASSERT_EQ(got.reply.block_count, 1u);
  EXPECT_EQ(got.spans[0].tier, TierKind::kNvme);
  w->Advance(100'000);
  EXPECT_TRUE(w->Holds(b, group, World::Keys(1, 2)[0], 0, got.slots[0]));
  EXPECT_TRUE(IsOnDevice(Read(a, 1).slots.at(0))) << "read where it lies, it needs no order";
}

// The lease's prefix ends while its joiner reads: what that was told of is held to the lease's end,
// the block on the device and the one in DRAM behind it.
TEST_F(Device, WhatAJoinerReadsThereStaysWhenTheLeaseLosesIt) {
  const auto keys = World::Keys(2, 1);
  PutOnDevice(1);
  Flood();
  ASSERT_EQ(w->Put(a, group, keys), 1u) << "the second one";
  ASSERT_EQ(TierMask(1), kHbm);
  const SessionId scheduler = w->Open();
  w->OpenSimple(scheduler);
  const AcquireResult got = w->Acquire(scheduler, group, keys);
  ASSERT_EQ(got.reply.block_count, 2u);
  const auto order = TakeOrder();
  AcquireResult joined;
  const protocol::JoinRequest request{.token = got.reply.token,
                                      .member_mask = ~uint64_t{0},
                                      .group_handle = group,
                                      .flags = protocol::kAcquireDevice};
  ASSERT_TRUE(w->store->JoinRead(a, 900, request, &joined).ok());
  ASSERT_EQ(joined.reply.block_count, 2u);
  ASSERT_TRUE(IsOnDevice(joined.slots[0]) && !IsOnDevice(joined.slots[1]));
  DeviceBytes(order.order.device)[9] ^= std::byte{1};
  Copy(order);
  DeviceBytes(order.order.device)[9] ^= std::byte{1};
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(w->MatchCount(scheduler, group, keys), 0u) << "it is known to be wrong";
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  Flood();
  EXPECT_TRUE(HoldsOnDevice(1, joined.slots[0]));
  const std::vector<std::byte> second = World::Content(keys[1], 0, 0, kSlotBytes);
  EXPECT_EQ(std::memcmp(w->Address(a, joined.slots[1]), second.data(), second.size()), 0);
  EXPECT_EQ(w->Release(a, got.reply.token), StatusCode::kOk);
  EXPECT_EQ(w->Release(scheduler, got.reply.token), StatusCode::kOk);
  w->Run();
}

TEST_F(DeviceAndDrive, WrongBytesOnTheDeviceUnderAReaderAreForgotten) {
  PutOnDevice(1);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  const AcquireResult reader = Read(a, 1);
  ASSERT_TRUE(IsOnDevice(reader.slots[0]));
  const SessionId b = w->Open();
  w->OpenSimple(b);
  w->Acquire(b, group, World::Keys(1, 1));
  const auto order = TakeOrder();
  DeviceBytes(order.order.device)[9] ^= std::byte{1};
  Copy(order);
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(w->MatchCount(b, group, World::Keys(1, 1)), 0u);
  const SessionId c = w->Open();
  w->OpenSimple(c);
  Attach(c);
  AcquireResult joined;
  const protocol::JoinRequest request{.token = reader.reply.token,
                                      .member_mask = ~uint64_t{0},
                                      .group_handle = group,
                                      .flags = protocol::kAcquireDevice};
  EXPECT_TRUE(w->store->JoinRead(c, 900, request, &joined).ok());
  EXPECT_EQ(joined.reply.block_count, 0u) << "nobody is promised what is known to be wrong";
  EXPECT_EQ(w->Release(c, reader.reply.token), StatusCode::kOk);
  const uint64_t used_before = UsedBytes();
  EXPECT_EQ(w->Release(a, reader.reply.token), StatusCode::kOk);
  w->Run();
  EXPECT_EQ(UsedBytes(), used_before - kSlotBytes);
}

}  // namespace
}  // namespace terrace
