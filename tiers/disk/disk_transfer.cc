#include "tiers/disk/disk_transfer.h"

#include <cerrno>

#include "terrace/units.h"

namespace terrace {

TransferProgress::Next TransferProgress::Apply(int64_t result) {
  if (result == -EAGAIN || result == -EINTR) return Retry(Next::kAgainLater, result);
  if (result == -EIO && op_ == DiskOp::kRead && !has_retried_eio_) {
    has_retried_eio_ = true;
    ++retries_;
    return Next::kAgain;
  }
  if (result < 0) {
    return Fail(static_cast<int32_t>(-result),
                op_ == DiskOp::kRead ? "reading from the disk" : "writing to the disk");
  }
  if (result == 0) {
    return op_ == DiskOp::kRead ? Fail(ENODATA, "the file ends before the bytes asked for")
                                : Fail(ENOSPC, "the disk takes no more bytes");
  }
  const uint64_t reached_bytes = done_bytes_ + static_cast<uint64_t>(result);
  if (reached_bytes >= length_bytes_) {
    done_bytes_ = length_bytes_;
    return Next::kDone;
  }
  const uint64_t resumed_bytes =
      kind_ == Kind::kPayload ? RoundDown(reached_bytes, kDiskAlignmentBytes) : reached_bytes;
  if (resumed_bytes == done_bytes_) return Retry(Next::kAgain, -EIO);
  done_bytes_ = resumed_bytes;
  retries_in_row_ = 0;
  ++retries_;
  return Next::kAgain;
}

TransferProgress::Next TransferProgress::Retry(Next next, int64_t error) {
  if (retries_in_row_ >= kDiskRetriesMax) {
    return Fail(static_cast<int32_t>(-error), "no progress after all retries");
  }
  ++retries_in_row_;
  ++retries_;
  return next;
}

TransferProgress::Next TransferProgress::Fail(int32_t error, const char* what) {
  status_ = Status(StatusCode::kIo, what, error);
  return Next::kFailed;
}

}  // namespace terrace
