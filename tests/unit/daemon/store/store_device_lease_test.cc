// Leases on blocks in the memory of a device: who joins one is answered there, and what a reader
// was told of there lasts as long as its lease.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device_fixture.h"
#include "terrace/protocol_join.h"

namespace terrace {
namespace {

using protocol::SpanState;
using World = StoreWorld;

TEST_F(StoreDevice, AJoinerIsAnsweredThereIfItCanReadThere) {
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
    const AcquireResult joined = Join(session, got.reply.token, protocol::kAcquireDevice);
    return joined;
  };
  const AcquireResult with = join(b);
  ASSERT_EQ(with.reply.block_count, 1u);
  EXPECT_EQ(with.slots[0], got.slots[0]);
  EXPECT_EQ(join(c).reply.block_count, 0u) << "there is nothing of it that it could read";
}

// A scheduler without a device asks, a rank with one reads: that is how blocks come there.
TEST_F(StoreDevice, AJoinerReadsThereWhatASchedulerWithoutADeviceAcquired) {
  const SessionId scheduler = w->Open();
  w->OpenSimple(scheduler);
  const auto keys = World::Keys(1, 1);
  w->Put(a, group, keys);
  LeaseToken token;
  const auto acquire_and_join = [&] {
    const AcquireResult got = w->Acquire(scheduler, group, keys);
    token = got.reply.token;
    const AcquireResult joined = Join(a, token, protocol::kAcquireDevice);
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

// The lease's prefix ends while its joiner reads: what that was told of is held to the lease's end,
// the block on the device and the one in DRAM behind it.
TEST_F(StoreDevice, WhatAJoinerReadsThereStaysWhenTheLeaseLosesIt) {
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
  const AcquireResult joined = Join(a, got.reply.token, protocol::kAcquireDevice);
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

TEST_F(StoreDeviceAndDrive, WrongBytesOnTheDeviceUnderAReaderAreForgotten) {
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
  const AcquireResult joined = Join(c, reader.reply.token, protocol::kAcquireDevice);
  EXPECT_EQ(joined.reply.block_count, 0u) << "nobody is promised what is known to be wrong";
  EXPECT_EQ(w->Release(c, reader.reply.token), StatusCode::kOk);
  const uint64_t used_before = UsedBytes();
  EXPECT_EQ(w->Release(a, reader.reply.token), StatusCode::kOk);
  w->Run();
  EXPECT_EQ(UsedBytes(), used_before - kSlotBytes);
}

TEST_F(StoreDevice, AnOwnersPlaceThereOutlivesAJoinersWaitForDram) {
  PutOnDevice(1);
  Flood();
  ASSERT_EQ(TierMask(1), kHbm);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const auto keys = World::Keys(1, 1);
  const AcquireResult coming = w->Acquire(b, group, keys);
  ASSERT_EQ(coming.reply.block_count, 1u);
  const AcquireResult got = Read(a, 1);
  ASSERT_TRUE(IsOnDevice(got.slots.at(0)));
  const SessionId c = w->Open();
  w->OpenSimple(c);
  const AcquireResult joined = Join(c, got.reply.token);
  ASSERT_EQ(joined.reply.block_count, 1u);
  ASSERT_EQ(joined.spans[0].state, SpanState::kComing);
  w->Run();
  EXPECT_TRUE(w->store->leases().Cancel(c, kJoinRequest).ok());
  w->Run();
  const auto order = TakeOrder();
  Copy(order);
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  EXPECT_EQ(w->Release(b, coming.reply.token), StatusCode::kOk);
  w->Run();
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0])) << "a still reads it";
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok()) << "its lease is as valid as ever";
}

// A scheduler without the device; a joiner with it: block 0 there, block 1 coming from the drive.
TEST_F(StoreDeviceAndDrive, WhatComesLaterForAJoinerWithTheDeviceStays) {
  PutOnDevice(1);
  const auto keys = World::Keys(2, 1);
  ASSERT_EQ(w->Put(a, group, keys), 1u);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  const SessionId s = w->Open();
  w->OpenSimple(s);
  const AcquireResult got = w->Acquire(s, group, keys);
  ASSERT_EQ(got.reply.block_count, 2u);
  const AcquireResult joined = Join(a, got.reply.token, protocol::kAcquireDevice);
  ASSERT_EQ(joined.reply.block_count, 2u);
  ASSERT_TRUE(IsOnDevice(joined.slots[0]) && !IsOnDevice(joined.slots[1]));
  ASSERT_EQ(joined.spans[1].state, SpanState::kComing);
  w->Advance(100'000);  // block 1 comes, and a is told; the order for block 0 hangs
  const std::vector<std::byte> second = World::Content(keys[1], 0, 0, kSlotBytes);
  const auto holds = [&] {
    return std::memcmp(w->Address(a, joined.slots[1]), second.data(), second.size()) == 0;
  };
  ASSERT_TRUE(holds());
  EXPECT_TRUE(w->store->leases().Cancel(s, w->last_request()).ok());
  w->Run();
  for (uint64_t chain = 100; chain < 140; ++chain) w->Put(s, group, World::Keys(1, chain));
  w->Advance(100'000);
  EXPECT_TRUE(holds()) << "a still reads it";
  EXPECT_TRUE(HoldsOnDevice(1, joined.slots[0]));
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok());
}

// Holes on the device: the parent's copy was refused, the child's was not.
TEST_F(StoreDeviceAndDrive, WhatLiesThereBehindAHoleStays) {
  const auto keys = World::Keys(2, 1);
  ASSERT_EQ(w->Put(a, group, keys), 2u);
  w->Run();
  for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, 1, 2);
  ASSERT_EQ(w->listener.work_orders.size(), 2u);
  const auto first = TakeOrder();
  Execute();
  EXPECT_EQ(Answer(first, StatusCode::kNoSpace), StatusCode::kOk);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  const AcquireResult got =
      w->Acquire(a, group, keys, protocol::kAcquireDevice | protocol::kAcquireByParts);
  ASSERT_EQ(got.spans.size(), 2u);
  ASSERT_EQ(got.spans[0].state, SpanState::kComing);
  ASSERT_EQ(got.spans[1].tier, TierKind::kHbm);
  ASSERT_TRUE(IsOnDevice(got.slots[1]));
  const auto holds = [&] {
    const std::vector<std::byte> bytes = World::Content(keys[1], 0, 0, kSlotBytes);
    return std::memcmp(DeviceBytes(got.slots[1]), bytes.data(), bytes.size()) == 0;
  };
  ASSERT_TRUE(holds());
  EXPECT_TRUE(w->store->leases().Cancel(a, w->last_request()).ok());
  w->Run();
  for (uint64_t chain = 10; chain < 40; ++chain) {
    PutOnDevice(chain);
    w->Advance(20'000);
  }
  EXPECT_TRUE(holds()) << "by parts, a block that is ready is held to the end of the lease";
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok());
}

TEST_F(StoreDeviceAndDrive, WhatLiesInDramBehindTheDeviceStays) {
  PutOnDevice(1);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  const auto keys = World::Keys(2, 1);
  ASSERT_EQ(w->Put(a, group, keys), 1u);
  w->Advance(100'000);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const AcquireResult coming = w->Acquire(b, group, World::Keys(1, 1));  // 0 begins to come to DRAM
  const uint64_t bs = w->last_request();
  const AcquireResult got = w->Acquire(a, group, keys, protocol::kAcquireDevice);
  ASSERT_EQ(got.reply.block_count, 2u);
  ASSERT_TRUE(IsOnDevice(got.slots[0]) && !IsOnDevice(got.slots[1]));
  ASSERT_EQ(got.spans.back().state, SpanState::kReady);
  const SessionId c = w->Open();
  w->OpenSimple(c);
  const AcquireResult joined = Join(c, got.reply.token);
  ASSERT_EQ(joined.spans[0].state, SpanState::kComing);
  EXPECT_TRUE(w->store->leases().Cancel(c, kJoinRequest).ok());
  EXPECT_TRUE(w->store->leases().Cancel(b, bs).ok());
  w->Run();
  const std::vector<std::byte> second = World::Content(keys[1], 0, 0, kSlotBytes);
  for (uint64_t chain = 100; chain < 140; ++chain) {
    w->Put(b, group, World::Keys(1, chain));
    w->Advance(20'000);
  }
  EXPECT_EQ(std::memcmp(w->Address(a, got.slots[1]), second.data(), second.size()), 0);
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok());
}

TEST_F(StoreDevice, AnOwnersPlaceThereOutlivesARefusedOrder) {
  PutOnDevice(1);
  Flood();
  ASSERT_EQ(TierMask(1), kHbm);
  const SessionId b = w->Open();
  w->OpenSimple(b);
  const auto keys = World::Keys(1, 1);
  const AcquireResult coming = w->Acquire(b, group, keys);
  ASSERT_EQ(coming.reply.block_count, 1u);
  const AcquireResult got = Read(a, 1);
  ASSERT_TRUE(IsOnDevice(got.slots.at(0)));
  const SessionId c = w->Open();
  w->OpenSimple(c);
  const AcquireResult joined = Join(c, got.reply.token);
  ASSERT_EQ(joined.reply.block_count, 1u);
  ASSERT_EQ(joined.spans[0].state, SpanState::kComing);
  w->Run();
  const auto order = TakeOrder();
  EXPECT_EQ(Answer(order, StatusCode::kNoSpace), StatusCode::kOk);
  w->Run();
  EXPECT_EQ(w->Release(b, coming.reply.token), StatusCode::kOk);
  w->Run();
  for (uint64_t chain = 10; chain < 40; ++chain) PutOnDevice(chain);
  EXPECT_TRUE(HoldsOnDevice(1, got.slots[0])) << "a still reads it";
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok()) << "its lease is as valid as ever";
}

// A scheduler without the device; a joiner with it: block 0 there, block 1 coming from the drive.
TEST_F(StoreDeviceAndDrive, WhatARankReadsOutlivesItsSchedulersDeadline) {
  PutOnDevice(1);
  const auto keys = World::Keys(2, 1);
  ASSERT_EQ(w->Put(a, group, keys), 1u);
  w->Advance(100'000);
  Flood();
  w->Advance(100'000);
  const SessionId s = w->Open();
  w->OpenSimple(s);
  const AcquireResult got = w->Acquire(s, group, keys);
  ASSERT_EQ(got.reply.block_count, 2u);
  const AcquireResult joined = Join(a, got.reply.token, protocol::kAcquireDevice);
  ASSERT_EQ(joined.reply.block_count, 2u);
  ASSERT_TRUE(IsOnDevice(joined.slots[0]) && !IsOnDevice(joined.slots[1]));
  ASSERT_EQ(joined.spans[1].state, SpanState::kComing);
  w->Advance(100'000);  // block 1 comes, and a is told; the order for block 0 hangs
  const std::vector<std::byte> second = World::Content(keys[1], 0, 0, kSlotBytes);
  const auto holds = [&] {
    return std::memcmp(w->Address(a, joined.slots[1]), second.data(), second.size()) == 0;
  };
  ASSERT_TRUE(holds());
  w->Advance(2'500'000);  // the order's deadline, and the scheduler's; nobody is silent
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok()) << "still its lease";
  for (uint64_t chain = 100; chain < 140; ++chain) w->Put(s, group, World::Keys(1, chain));
  w->Advance(100'000);
  EXPECT_TRUE(holds()) << "a still reads it";
  EXPECT_TRUE(HoldsOnDevice(1, joined.slots[0]));
  EXPECT_TRUE(w->store->leases().Renew(a, got.reply.token).ok());
}

// What was promoted part by part, and is in doubt since an executor saw other bytes.
class StoreDeviceByParts : public StoreDevice {
 protected:
  StoreDeviceByParts() : StoreDevice({.lower_tier_count = 1, .part_read_bytes_min = 64 * kKiB}) {
    group = w->OpenGroup(a, TestGroup("parts", {TestSpace(0, 0, 4)}));
  }
  AcquireResult ReadByParts(SessionId session) {
    return w->Acquire(session, group, World::Keys(1, 1), protocol::kAcquireByParts);
  }
  // Its bytes in DRAM are wrong if `is_wrong`, or the executor says so only. Checks wait.
  void PromoteAndDoubt(bool is_wrong) {
    ASSERT_EQ(w->Put(a, group, World::Keys(1, 1)), 1u);
    w->Advance(100'000);
    Flood();
    w->Advance(100'000);
    ASSERT_EQ(TierMask(1), kNvme);
    const AcquireResult promoted = ReadByParts(b);
    w->Advance(100'000);
    ASSERT_EQ(TierMask(1), kDram | kNvme);
    EXPECT_EQ(w->Release(b, promoted.reply.token), StatusCode::kOk);
    ReadAndRelease(a, 1);
    ReadAndRelease(a, 1);
    const auto order = TakeOrder();
    if (is_wrong) w->Address(a, order.order.arena)[9] ^= std::byte{1};
    Copy(order);
    if (!is_wrong) DeviceBytes(order.order.device)[9] ^= std::byte{1};
    w->holds_checksums = true;
    w->listener.completions.clear();
    EXPECT_EQ(Answer(order), StatusCode::kOk);
  }

  SessionId b = w->Open(0, 2);
};

TEST_F(StoreDeviceByParts, NoPartOfWhatIsInDoubtIsTold) {
  PromoteAndDoubt(/*is_wrong=*/true);
  const AcquireResult got = ReadByParts(b);
  ASSERT_EQ(got.reply.block_count, 1u);
  ASSERT_EQ(got.spans[0].state, SpanState::kComing);
  w->Run();
  EXPECT_TRUE(w->listener.completions.empty()) << "nobody has compared these bytes";
  w->holds_checksums = false;
  w->Run();
  ASSERT_EQ(w->listener.completions.size(), 1u);
  EXPECT_EQ(w->listener.completions[0].status, StatusCode::kNotFound);
  EXPECT_EQ(w->Release(b, got.reply.token), StatusCode::kOk);
}

// A session that asks again about its lease waits for what it was told of before.
TEST_F(StoreDeviceByParts, ASecondWaitInVainTakesNothingFromTheFirst) {
  PromoteAndDoubt(/*is_wrong=*/false);
  w->holds_checksums = false;
  w->Run();
  const AcquireResult got = w->Acquire(b, group, World::Keys(1, 1));
  ASSERT_EQ(got.spans.at(0).state, SpanState::kReady);
  ReadAndRelease(a, 1);
  const auto order = TakeOrder();
  Copy(order);
  DeviceBytes(order.order.device)[9] ^= std::byte{1};
  w->holds_checksums = true;
  EXPECT_EQ(Answer(order), StatusCode::kOk);
  JoinResult again;
  const protocol::JoinRequest page{.token = got.reply.token,
                                   .member_mask = ~uint64_t{0},
                                   .group_handle = group,
                                   .flags = protocol::kJoinPaged};
  ASSERT_TRUE(
      w->Join({.session = b, .request_id = 901, .request = page, .first_block = 1}, &again).ok());
  ASSERT_EQ(again.read.spans.at(0).state, SpanState::kComing);
  EXPECT_TRUE(w->store->leases().Cancel(b, 901).ok());
  w->holds_checksums = false;
  w->Run();
  for (uint64_t chain = 100; chain < 140; ++chain) w->Put(a, group, World::Keys(1, chain));
  w->Advance(100'000);
  EXPECT_TRUE(w->Holds(b, group, World::Keys(1, 1)[0], 0, got.slots[0])) << "b still reads it";
  EXPECT_EQ(w->Release(b, got.reply.token), StatusCode::kOk);
}

}  // namespace
}  // namespace terrace
