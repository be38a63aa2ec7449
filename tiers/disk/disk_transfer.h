// DiskTransfer: a payload read or write on its way through a DiskEngine, and the rule of what an
// answer of the operating system means for it: done, once more from here, once more but later, or
// failed.
//
// Pure: no I/O.
#pragma once

#include <cstddef>
#include <cstdint>

#include "terrace/status.h"
#include "tiers/disk/disk.h"

namespace terrace {

inline constexpr uint64_t kDiskAlignmentBytes = 4096;
inline constexpr uint32_t kDiskRetriesMax = 8;  // in a row, without a byte of progress
inline constexpr uint32_t kDiskBufferNone = 0xFFFFFFFF;

// Sees the result of every attempt (bytes, or a negative errno) and may replace it. Called on the
// threads that do the I/O, several at a time.
using DiskResultFilter = std::function<int64_t(DiskOp op, int64_t result)>;

struct DiskTransfer {
  uint32_t token = 0;  // of the disk's, echoed
  DiskOp op = DiskOp::kRead;
  DiskFile file = kDiskFileNone;
  int fd = -1;
  uint32_t buffer_index = kDiskBufferNone;  // the registered buffer that holds the memory
  uint64_t offset_bytes = 0;
  std::byte* memory = nullptr;
  uint64_t length_bytes = 0;
};

// How far one request has come. The file position and the address are advanced by done_bytes().
class TransferProgress {
 public:
  // kPayload transfers stay aligned: what ends inside a sector is done again from its start.
  enum class Kind : uint8_t { kPayload, kTable };
  enum class Next : uint8_t { kDone, kAgain, kAgainLater, kFailed };

  TransferProgress() = default;
  TransferProgress(Kind kind, DiskOp op, uint64_t length_bytes)
      : length_bytes_(length_bytes), op_(op), kind_(kind) {}

  // `result` as pread(2) gives it, errors as negative errno.
  Next Apply(int64_t result);

  uint64_t done_bytes() const { return done_bytes_; }
  uint64_t left_bytes() const { return length_bytes_ - done_bytes_; }
  uint32_t retries() const { return retries_; }
  // How long to wait after kAgainLater.
  uint64_t backoff_us() const { return uint64_t{50} << retries_in_row_; }
  // After kDone or kFailed.
  Status status() const { return status_; }

 private:
  Next Retry(Next next, int64_t error);
  Next Fail(int32_t error, const char* what);

  uint64_t length_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  uint32_t retries_ = 0;
  uint32_t retries_in_row_ = 0;
  Status status_;
  DiskOp op_ = DiskOp::kRead;
  Kind kind_ = Kind::kPayload;
  bool has_retried_eio_ = false;
};

}  // namespace terrace
