// Blocks in the memory of a device: how they get there and back by work orders, and who may read
// them there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/host/host_device.h"
#include "daemon/domain/domain_device.h"
#include "device_fixture.h"

namespace terrace {
namespace {

using protocol::OrderKind;
using protocol::SpanState;
using World = StoreWorld;

TEST_F(StoreDevice, ABlockIsCopiedThereAtItsSecondHit) {
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

TEST_F(StoreDevice, WhoAttachedItIsAnsweredWithBytesThere) {
  PutOnDevice(1);
  const AcquireResult got = Read(a, 1);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].tier, TierKind::kHbm);
  EXPECT_EQ(got.spans[0].state, SpanState::kReady);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
  EXPECT_EQ(w->Stats().device->blocks_served, 1u);
}

TEST_F(StoreDevice, WhoDidNotAttachOrAskIsAnsweredFromDram) {
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

TEST_F(StoreDevice, ABlockThatLeftDramComesBackByAnOrder) {
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

TEST_F(StoreDevice, WrongBytesAreNeverPublishedThere) {
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

TEST_F(StoreDevice, WrongBytesThatComeBackAreAMiss) {
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

TEST_F(StoreDevice, AnAnswerAfterTheDeadlineCountsForNothing) {
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

TEST_F(StoreDevice, AnAnswerOfAnotherGenerationOrSessionIsNotBelieved) {
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

TEST_F(StoreDevice, AHungUpExecutorKeepsItsOrderUntilItIsDead) {
  PutOnDevice(1);
  Flood();
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const AcquireResult got = w->Acquire(b, group, World::Keys(1, 1));
  const auto order = TakeOrder();
  ASSERT_EQ(order.session, a);
  Attach(b);
  w->store->sessions().HangUp(a);
  w->Run();
  EXPECT_TRUE(w->listener.work_orders.empty()) << "it may still write to the slot";
  w->store->sessions().ProofOfDeath(a);
  w->Run();
  const auto again = TakeOrder();
  EXPECT_EQ(again.session, b);
  EXPECT_EQ(again.order.order_id, order.order.order_id);
  Copy(again);
  EXPECT_EQ(Answer(again), StatusCode::kOk);
  EXPECT_TRUE(w->Holds(b, group, World::Keys(1, 1)[0], 0, got.slots[0]));
  EXPECT_EQ(w->Stats().device->orders.reissued, 1u);
}

TEST_F(StoreDevice, WithNoClientLeftItsBlocksWaitForTheNext) {
  PutOnDevice(1);
  Flood();
  w->store->sessions().ProofOfDeath(a);
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

TEST_F(StoreDevice, WhatIsReadThereIsNotReused) {
  PutOnDevice(1);
  const AcquireResult got = Read(a, 1);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  const auto keys = World::Keys(1, 1);
  EXPECT_EQ(w->Evict(w->Query(a, group, keys)).skipped_count, 1u);
  // More than the device holds passes through it.
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
  EXPECT_EQ(TierMask(1) & kHbm, kHbm);
  EXPECT_EQ(w->Release(a, got.reply.token), StatusCode::kOk);
  for (uint64_t chain = 40; chain < 70; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1) & kHbm, 0) << "unheld it makes room";
}

TEST_F(StoreDevice, AReadyRunThatIsHeldKeepsWhatOfItLiesThere) {
  PutOnDevice(1, 4);
  const auto keys = World::Keys(6, 1);
  ASSERT_EQ(w->Put(a, group, keys), 2u) << "only in DRAM";
  w->Run();
  KeysQuery query = w->Query(a, group, keys);
  query.member_mask = 0;
  AcquireResult held;
  ASSERT_EQ(*w->store->prefixes().Acquire(&held).StepReady(query), Progress::kDone);
  ASSERT_EQ(held.walk.walked_count, 6u);
  w->Check();
  // More than the device holds passes through it.
  for (uint64_t chain = 10; chain < 30; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1), kHbm | kDram);
}

TEST_F(StoreDevice, AReadyRunThatIsLetGoMakesRoomThere) {
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

TEST_F(StoreDevice, AnErasedBlockStaysThereForItsReaders) {
  PutOnDevice(1);
  const AcquireResult got = Read(a, 1);
  w->Reset(a, group);
  w->Run();
  EXPECT_EQ(w->MatchCount(a, group, World::Keys(1, 1)), 0u);
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0]));
  const uint64_t used_before = UsedBytes();
  EXPECT_EQ(w->Release(a, got.reply.token), StatusCode::kOk);
  w->Run();
  EXPECT_EQ(UsedBytes(), used_before - kSlotBytes);
}

TEST_F(StoreDevice, ADeadReadersBlockIsFencedUntilItIsProven) {
  PutOnDevice(1);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  Attach(b);
  const AcquireResult got = Read(b, 1);
  ASSERT_TRUE(IsOnDevice(got.slots[0]));
  w->store->sessions().HangUp(b);
  w->Run();
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0])) << "its copies may still be under way";
  w->store->sessions().ProofOfDeath(b);
  w->Run();
  for (uint64_t chain = 40; chain < 70; ++chain) PutOnDevice(chain);
  EXPECT_EQ(TierMask(1) & kHbm, 0);
}

TEST_F(StoreDevice, AnExecutorThatNeverManagesGetsNoMoreOrders) {
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

TEST_F(StoreDevice, ABlockSpoiltInDramIsForgottenAndTheDeviceGoesOn) {
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

TEST_F(StoreDevice, OrdersThatNobodyTakesEndAtTheirDeadline) {
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
  w->store->sessions().ProofOfDeath(a);
  w->Advance(3'000'000);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(StoreDevice, AnotherDeviceIsRefused) {
  protocol::DeviceAttachReply reply;
  const Error other = w->store->devices().Attach(a, "GPU-1", &reply);
  EXPECT_EQ(other.code(), StatusCode::kNotFound);
  EXPECT_NE(other.sentence().find("device 'test'"), std::string::npos)
      << other.sentence() << ": which one it is";
  World plain;
  const Error none = plain.store->devices().Attach(plain.Open(), "host", &reply);
  EXPECT_EQ(none.code(), StatusCode::kUnsupported);
  EXPECT_NE(none.sentence().find("hbm.capacity_bytes"), std::string::npos) << none.sentence();
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

TEST_F(StoreDeviceAndDrive, AMissingClientCostsTheDriveNothing) {
  PutOnDevice(1);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  ASSERT_EQ(TierMask(1), kHbm | kNvme);
  w->store->sessions().ProofOfDeath(a);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const AcquireResult got = w->Acquire(b, group, World::Keys(1, 1));
  ASSERT_EQ(got.reply.block_count, 1u);
  EXPECT_EQ(got.spans[0].tier, TierKind::kNvme);
  w->Advance(100'000);
  EXPECT_TRUE(w->Holds(b, group, World::Keys(1, 1)[0], 0, got.slots[0]));
}

TEST_F(StoreDeviceAndDrive, WhatLeavesDramGoesToTheDriveThoughTheDeviceHasIt) {
  w->faults[0]->SetRate(sim::Fault::kWriteFails, 1'000'000);
  PutOnDevice(1);
  w->Advance(100'000);
  ASSERT_EQ(TierMask(1), kHbm | kDram);
  w->faults[0]->SetRate(sim::Fault::kWriteFails, 0);
  Flood();
  w->Advance(100'000);
  EXPECT_EQ(TierMask(1), kHbm | kNvme);
}

TEST_F(StoreDeviceAndDrive, AClientThatHangsHidesNeitherTheDriveNorTheDevice) {
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

}  // namespace
}  // namespace terrace
