// Work orders of a daemon gone wrong, and of a device that is short of memory.
#include "client/arena/order_lane.h"

#include <gtest/gtest.h>

#include <memory>

#include "short_device.h"
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

TEST(OrderLanes, NoBufferIsFreedUnderACopyThatNoEventStandsBehind) {
  ShortDevice device;
  std::byte arena[4096] = {}, slab[4096] = {};
  {
    Result<std::unique_ptr<client::OrderLane>> lane = client::OrderLane::Create(device.device());
    ASSERT_TRUE(lane.ok());
    device.RefuseRecordings(2);
    (*lane)->Demote({slab, arena, 4096, false});
  }
  EXPECT_EQ(device.freed_under_way_count(), 0);
  EXPECT_EQ(device.under_way_count(), 0);
}

}  // namespace
}  // namespace terrace
