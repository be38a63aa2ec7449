#include "tiers/disk/disk_transfer.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace terrace {
namespace {

using Next = TransferProgress::Next;
using Kind = TransferProgress::Kind;

TEST(TransferProgress, WholeTransferIsDone) {
  TransferProgress progress(Kind::kPayload, DiskOp::kRead, 65536);
  EXPECT_EQ(progress.Apply(65536), Next::kDone);
  EXPECT_TRUE(progress.status().ok());
  EXPECT_EQ(progress.retries(), 0u);
}

TEST(TransferProgress, ShortPayloadGoesOnFromTheLastWholeSector) {
  TransferProgress progress(Kind::kPayload, DiskOp::kWrite, 65536);
  EXPECT_EQ(progress.Apply(10000), Next::kAgain);
  EXPECT_EQ(progress.done_bytes(), 8192u);
  EXPECT_EQ(progress.left_bytes(), 65536u - 8192u);
  EXPECT_EQ(progress.Apply(65536 - 8192), Next::kDone);
  EXPECT_EQ(progress.retries(), 1u);
}

TEST(TransferProgress, ShortTableWriteGoesOnFromTheByte) {
  TransferProgress progress(Kind::kTable, DiskOp::kWriteTable, 300);
  EXPECT_EQ(progress.Apply(7), Next::kAgain);
  EXPECT_EQ(progress.done_bytes(), 7u);
}

TEST(TransferProgress, NoProgressEndsAfterTheRetries) {
  for (const int64_t result : {int64_t{-EAGAIN}, int64_t{-EINTR}, int64_t{100}}) {
    TransferProgress progress(Kind::kPayload, DiskOp::kWrite, 8192);
    const Next next = result < 0 ? Next::kAgainLater : Next::kAgain;
    for (uint32_t i = 0; i < kDiskRetriesMax; ++i) EXPECT_EQ(progress.Apply(result), next) << i;
    EXPECT_EQ(progress.Apply(result), Next::kFailed);
    EXPECT_EQ(progress.status().code(), StatusCode::kIo);
    EXPECT_EQ(progress.status().detail(), result < 0 ? -result : EIO);
  }
}

TEST(TransferProgress, ProgressAllowsNewRetriesAndShortensTheWait) {
  TransferProgress progress(Kind::kPayload, DiskOp::kRead, 4 * 4096);
  for (uint32_t i = 0; i < kDiskRetriesMax; ++i) {
    EXPECT_EQ(progress.Apply(-EAGAIN), Next::kAgainLater);
  }
  const uint64_t longest_us = progress.backoff_us();
  EXPECT_EQ(progress.Apply(4096), Next::kAgain);
  EXPECT_EQ(progress.Apply(-EAGAIN), Next::kAgainLater);
  EXPECT_LT(progress.backoff_us(), longest_us);
}

TEST(TransferProgress, ReadErrorIsTriedOnceMoreAWriteErrorNot) {
  TransferProgress read(Kind::kPayload, DiskOp::kRead, 4096);
  EXPECT_EQ(read.Apply(-EIO), Next::kAgain);
  EXPECT_EQ(read.Apply(-EIO), Next::kFailed);
  EXPECT_EQ(read.status().detail(), EIO);
  TransferProgress write(Kind::kPayload, DiskOp::kWrite, 4096);
  EXPECT_EQ(write.Apply(-EIO), Next::kFailed);
}

TEST(TransferProgress, EndOfFileAndFullDiskAreErrors) {
  TransferProgress read(Kind::kPayload, DiskOp::kRead, 4096);
  EXPECT_EQ(read.Apply(0), Next::kFailed);
  EXPECT_EQ(read.status().detail(), ENODATA);
  TransferProgress write(Kind::kPayload, DiskOp::kWrite, 4096);
  EXPECT_EQ(write.Apply(-ENOSPC), Next::kFailed);
  EXPECT_EQ(write.status().detail(), ENOSPC);
}

}  // namespace
}  // namespace terrace
