// Work orders of a daemon gone wrong, and of a device that is short of memory.
#include "client/arena/order_lane.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "terrace/protocol_device.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

class Orders : public ClientFixture {};

TEST_F(Orders, AnOrderOfNoBytesToAClientWithoutADeviceIsRefused) {
  protocol::WorkOrder order;
  order.order_id = 1;
  order.deadline_us = 1'000'000;
  order.device = {.segment = protocol::kDeviceSegmentFirst, .page = 0};
  order.arena = {.segment = 0, .page = 0};
  BodyBuilder body;
  body.Add(order);
  daemon_.Tell(protocol::kVerbWorkOrder, 0, StatusCode::kOk, body.bytes());
  ASSERT_TRUE(daemon_.WaitFor(protocol::kVerbOrderDone, 1));
  const PeerMessage done = daemon_.Received(protocol::kVerbOrderDone)[0];
  EXPECT_NE(done.Head<protocol::OrderDoneRequest>().status, 0);
}

// What a device that cannot record an event at first is asked to do.
struct ShortDevice {
  int refusals = 0;  // of recordings still to come
  int queued = 0;    // copies that no event that was awaited stands behind
  int freed_under_way = 0;
  bool is_recorded = false;
} g_short;

DeviceStatus Record(EventHandle*, StreamHandle*) {
  if (g_short.refusals > 0) {
    --g_short.refusals;
    return {static_cast<int32_t>(StatusCode::kNoSpace), 2, "out of memory"};
  }
  g_short.is_recorded = true;
  return {};
}
DeviceStatus Query(EventHandle*) {
  const bool is_busy = g_short.is_recorded && g_short.queued > 0;
  return is_busy ? DeviceStatus{static_cast<int32_t>(StatusCode::kBusy), 0, ""} : DeviceStatus{};
}
DeviceStatus Await(EventHandle*) {
  if (g_short.is_recorded) g_short.queued = 0;
  return {};
}
DeviceStatus Free(DeviceHandle*, DeviceMemory, void* address) {
  if (g_short.queued > 0) ++g_short.freed_under_way;
  std::free(address);
  return {};
}

DeviceOps ShortOps() {
  DeviceOps ops{};
  ops.struct_bytes = sizeof(ops);
  ops.abi_version = kDeviceAbiVersion;
  ops.backend = "short";
  ops.close_device = [](DeviceHandle*) {};
  ops.allocate = [](DeviceHandle*, DeviceMemory, uint64_t byte_count, void** address) {
    *address = std::aligned_alloc(4096, byte_count);
    return DeviceStatus{};
  };
  ops.deallocate = Free;
  ops.create_stream = [](DeviceHandle*, StreamPriority, StreamHandle** stream) {
    *stream = reinterpret_cast<StreamHandle*>(&g_short);
    return DeviceStatus{};
  };
  ops.destroy_stream = [](StreamHandle*) {};
  ops.create_event = [](DeviceHandle*, EventHandle** event) {
    *event = reinterpret_cast<EventHandle*>(&g_short);
    return DeviceStatus{};
  };
  ops.destroy_event = [](EventHandle*) {};
  ops.record_event = Record;
  ops.query_event = Query;
  ops.await_event = Await;
  ops.copy_batch = [](StreamHandle*, CopyDirection, const CopyPiece*, uint32_t) {
    ++g_short.queued;
    return DeviceStatus{};
  };
  return ops;
}

TEST(OrderLanes, NoBufferIsFreedUnderACopyThatNoEventStandsBehind) {
  static const DeviceOps ops = ShortOps();
  const auto device =
      std::make_shared<const Device>(ops, reinterpret_cast<DeviceHandle*>(&g_short));
  std::byte arena[4096] = {}, slab[4096] = {};
  {
    Result<std::unique_ptr<client::OrderLane>> lane = client::OrderLane::Create(device);
    ASSERT_TRUE(lane.ok());
    g_short.refusals = 2;
    (*lane)->Demote({slab, arena, 4096, false});
  }
  EXPECT_EQ(g_short.freed_under_way, 0);
  EXPECT_EQ(g_short.queued, 0);
}

}  // namespace
}  // namespace terrace
