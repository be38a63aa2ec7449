// Warm calls allocate nothing on their caller's thread; and what is left where memory is short.
#include "unit/client/client_fixture.h"

// Sanitizers bring their own.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <string_view>

#include "counted_allocations.h"
#include "terrace/protocol_device.h"

namespace terrace {
namespace {

using Allocations = ClientFixture;

// PROMISE: T26 calls that need no memory
TEST_F(Allocations, WarmCallsMakeNone) {
  const std::vector<BlockKey> keys = TestKeys(128);
  const std::vector<std::byte> part(8192);
  const auto round = [&] {
    Result<ReadLease> read = client_->Acquire(group_, keys);
    ASSERT_TRUE(read.ok());
    ASSERT_TRUE(read->CopyPart(127, 0, 1, buffer_).ok());
    Result<WriteLease> write = client_->Reserve(group_, keys);
    ASSERT_TRUE(write.ok());
    for (uint32_t key = 0; key < 128; ++key) {
      ASSERT_TRUE(write->WritePart(key, 0, 0, part).ok());
      ASSERT_TRUE(write->WritePart(key, 0, 1, part).ok());
    }
    ASSERT_TRUE(client_->Commit(*write).ok());
    ASSERT_TRUE(client_->Match(group_, keys).ok());
    read->Release();
    write->Abort();
  };
  for (int i = 0; i < 20; ++i) round();
  const uint64_t before = test::g_allocation_count;
  for (int i = 0; i < 50; ++i) round();
  EXPECT_EQ(test::g_allocation_count, before);
}

thread_local bool t_is_short = false;  // of memory: this thread

// PROMISE: T26 a request without memory
TEST_F(Allocations, ACommitThatFindsNoneLeavesRoomForTheNextCompletion) {
  ClientOptions options = TestOptions(daemon_);
  options.pending_requests_max = 1;  // and room for four completions
  client_.reset();
  Connect(options);
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  {
    const test::ShortMemory memory([](size_t) { return t_is_short; });
    for (uint64_t i = 0; i < 8; ++i) {
      t_is_short = true;
      const StatusCode code = client_->CommitAsync(lease, {}, i).code();
      t_is_short = false;
      ASSERT_EQ(code, StatusCode::kNoSpace) << i;
    }
  }
  ClientCompletion completion;
  EXPECT_FALSE(client_->PollUntil(&completion, kLongUs)) << "nothing is awaited";
  ASSERT_TRUE(client_->CommitAsync(lease, {}, 9).ok()) << client_->last_error();
  ASSERT_TRUE(client_->PollUntil(&completion, kLongUs));
  EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(completion.user_data, 9u);
}

// Told of by the parts of an order: no other thread has as many bytes of anything.
constexpr uint32_t kOrderParts = 61;
std::atomic<int> g_short_orders{0};

bool IsShortOfAnOrder(size_t bytes) {
  char name[16] = "";
  if (bytes != kOrderParts * sizeof(uint64_t) || g_short_orders == 0) return false;
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string_view(name) == "terrace-client" && g_short_orders.fetch_sub(1) == 1;
}

// The first messages of a connection may come together with the handshake's last.
// PROMISE: T26 a first message without memory
TEST_F(Allocations, AConnectionWhoseFirstMessageFindsNoneIsMadeAgain) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != protocol::Verb::kOpen) return false;
    protocol::WorkOrder order;
    order.part_count = kOrderParts;
    order.length_bytes = kOrderParts * kArenaPageBytes;
    BodyBuilder body;
    body.Add(order);
    for (uint64_t part = 0; part < kOrderParts; ++part) body.Add(kArenaPageBytes);
    std::vector<std::byte> frames =
        daemon.Frames(message.verb, message.request_id, StatusCode::kOk, daemon.UsualBody(message));
    const std::vector<std::byte> more =
        daemon.Frames(protocol::kVerbWorkOrder, 0, StatusCode::kOk, body.bytes());
    frames.insert(frames.end(), more.begin(), more.end());
    daemon.SendBytes(frames);
    return true;
  });
  const test::ShortMemory memory(IsShortOfAnOrder);
  g_short_orders = 1;
  daemon_.Disconnect();
  ASSERT_TRUE(Eventually([&] { return g_short_orders == 0; }));
  ASSERT_TRUE(Eventually([&] { return daemon_.connection_count() >= 3; }));
  ASSERT_TRUE(Eventually([&] { return client_->is_connected(); }));
  EXPECT_THAT(client_->last_error(), testing::HasSubstr("no memory for what the daemon sent"));
  EXPECT_TRUE(client_->Match(group_, TestKeys(1)).ok());
}

}  // namespace
}  // namespace terrace

#endif
