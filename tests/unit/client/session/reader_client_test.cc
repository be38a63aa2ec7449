// A client whose daemon hands its memory over to be read only.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cerrno>

#include "cuda/host/host_device.h"
#include "cuda/host/host_pins.h"
#include "terrace/protocol_device.h"
#include "terrace/terrace.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;
using testing::HasSubstr;

class ClientReader : public ClientFixture {
 protected:
  ClientReader() : ClientFixture({.is_to_read = true}) {}
};

TEST_F(ClientReader, MapsMemoryToReadAloneAndSaysSo) {
  EXPECT_TRUE(client_->is_reader());
  EXPECT_NE(daemon_.Received(Verb::kHello).front().Head<protocol::HelloRequest>().flags &
                protocol::kHelloReader,
            0);
  const ReadLease lease = Acquire(2);
  const std::span<const std::byte> slot = lease.slot(0, 0);
  ASSERT_FALSE(slot.empty());
  EXPECT_TRUE(lease.CopyPart(0, 0, 0, buffer_).ok());
  const auto page = reinterpret_cast<uintptr_t>(slot.data()) & ~uintptr_t{kArenaPageBytes - 1};
  EXPECT_EQ(mprotect(reinterpret_cast<void*>(page), kArenaPageBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
}

// A device would want to write there.
TEST_F(ClientReader, RegistersNoSegmentWithADevice) {
  const auto device =
      std::make_shared<const Device>(std::move(Device::Open(HostDeviceOps())).value());
  const auto pins = client_->PinArena(device);
  ASSERT_TRUE(pins.ok());
  for (int i = 0; i < 3; ++i) {
    const ReadLease lease = Acquire(2);
    EXPECT_EQ(lease.block_count(), 2u);
  }
  EXPECT_TRUE(daemon_.Received(protocol::kVerbPinTurn).empty());
  EXPECT_EQ((*pins)->counts().pinned_bytes, 0u);
}

TEST_F(ClientReader, PassesOnWhatTheDaemonRefuses) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kReserve) return false;
    daemon.Answer(message, StatusCode::kUnsupported,
                  BodyBuilder().AddText("Reserve is for writers").bytes());
    return true;
  });
  EXPECT_EQ(client_->Reserve(group_, TestKeys(1)).status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(client_->last_error(), HasSubstr("Reserve is for writers"));
}

class ClientWriter : public ClientFixture {};

TEST_F(ClientWriter, IsNoReader) {
  EXPECT_FALSE(client_->is_reader());
  WriteLease lease = Reserve(1);
  EXPECT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
}

}  // namespace
}  // namespace terrace
