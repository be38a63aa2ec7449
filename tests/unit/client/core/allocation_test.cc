// Warm calls allocate nothing on their caller's thread.
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

}  // namespace
}  // namespace terrace

#endif
