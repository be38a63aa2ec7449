// Warm calls allocate nothing on their caller's thread; and what is left where memory is short.
#include "unit/client/client_fixture.h"

// Sanitizers bring their own.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

#include "counted_allocations.h"

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

}  // namespace
}  // namespace terrace

#endif
