// A Store with the memory of a device, and its clients' side of work orders in the test's hand.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/domain/domain_device.h"
#include "store_fixture.h"

namespace terrace {

inline constexpr uint64_t kSlabBytes = 2 * kMiB;
inline constexpr uint32_t kSlabs = 2;

// A store with a device, and its clients' side of work orders in the test's hand.
class StoreDevice : public ::testing::Test {
 protected:
  explicit StoreDevice(WorldOptions options = {}) {
    tier = std::make_unique<HbmTier>(
        HbmTier::Options{.slab_bytes = kSlabBytes,
                         .slab_count = kSlabs,
                         .locate = [this](const std::byte* slot) { return ArenaAddress(slot); },
                         .now_us = [this] { return w == nullptr ? 0 : w->clock.NowUs(); },
                         .order_deadline_us = 500'000});
    options.device = {.tier = tier.get(), .device = "test", .hits_min = 2};
    w = std::make_unique<StoreWorld>(options);
    a = w->Open();
    group = w->OpenSimple(a);
    Attach(a);
  }
  ~StoreDevice() override { w->Run(); }

  void Attach(SessionId session) {
    protocol::DeviceAttachReply reply;
    const Error attached = w->store->devices().Attach(session, "test", &reply);
    ASSERT_TRUE(attached.ok()) << attached.sentence();
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
    const bool is_promotion = ordered.order.kind == protocol::OrderKind::kPromote;
    std::memcpy(is_promotion ? device : arena, is_promotion ? arena : device,
                ordered.order.length_bytes);
  }
  StatusCode Answer(const sim::RecordingListener::Ordered& ordered,
                    StatusCode status = StatusCode::kOk) {
    std::vector<Checksum> roots;
    if (ordered.order.kind == protocol::OrderKind::kPromote && status == StatusCode::kOk) {
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
    const Status told = w->store->devices().OrderDone(ordered.session, done, roots);
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
        w->Acquire(session, group, StoreWorld::Keys(count, chain), protocol::kAcquireDevice);
    w->Run();
    return got;
  }
  void ReadAndRelease(SessionId session, uint64_t chain, uint32_t count = 1) {
    const AcquireResult got = Read(session, chain, count);
    ASSERT_EQ(got.reply.block_count, count);
    EXPECT_EQ(w->Release(session, got.reply.token), StatusCode::kOk);
    w->Run();
  }
  AcquireResult Join(SessionId session, const LeaseToken& token, uint16_t flags = 0) {
    JoinResult joined;
    const protocol::JoinRequest request{
        .token = token, .member_mask = ~uint64_t{0}, .group_handle = group, .flags = flags};
    EXPECT_TRUE(w->Join({session, kJoinRequest, request}, &joined).ok());
    return joined.read;
  }
  // Stored and hit until it lies on the device, too.
  void PutOnDevice(uint64_t chain, uint32_t count = 1) {
    ASSERT_EQ(w->Put(a, group, StoreWorld::Keys(count, chain)), count);
    w->Run();
    for (int hit = 0; hit < 2; ++hit) ReadAndRelease(a, chain, count);
    ExecuteAll();
  }
  // Everything else leaves DRAM.
  void Flood() {
    for (uint64_t chain = 90; chain < 98; ++chain) w->Put(a, group, StoreWorld::Keys(1, chain));
    w->Run();
  }
  bool HoldsOnDevice(uint64_t chain, const SlotAddress& slot) {
    const std::vector<std::byte> bytes =
        StoreWorld::Content(StoreWorld::Keys(1, chain)[0], 0, 0, kSlotBytes);
    return std::memcmp(DeviceBytes(slot), bytes.data(), bytes.size()) == 0;
  }
  uint8_t TierMask(uint64_t chain) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = StoreWorld::Keys(1, chain);
    EXPECT_TRUE(w->store->operators().Query(w->Query(a, group, keys), &blocks).ok());
    return blocks[0].tier_mask;
  }
  static bool IsOnDevice(const SlotAddress& slot) {
    return slot.has_bytes() && slot.segment >= protocol::kDeviceSegmentFirst;
  }
  uint64_t UsedBytes() { return tier->stats().used_bytes; }

  static constexpr uint64_t kJoinRequest = 900;
  static constexpr uint8_t kHbm = 1 << 0, kDram = 1 << 1, kNvme = 1 << 2;

  std::vector<std::byte> slabs = std::vector<std::byte>(kSlabs * kSlabBytes);
  std::unique_ptr<HbmTier> tier;
  std::unique_ptr<StoreWorld> w;
  SessionId a = 0;
  uint32_t group = 0;
};

// With drives, too: what is on the device is a copy beside the others.
class StoreDeviceAndDrive : public StoreDevice {
 protected:
  StoreDeviceAndDrive() : StoreDevice({.lower_tier_count = 1}) {}
};

}  // namespace terrace
