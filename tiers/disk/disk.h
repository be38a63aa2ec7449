// Disk: one NVMe path, as the NvmeTier sees it: files that are read and written by requests which
// finish later. Implementations: io_uring, a pool of pread/pwrite threads where that is blocked,
// and a simulated drive that loses power.
//
// A write is on its way to the drive, not on it, until a Sync begun after its completion is done;
// what was written survives the process, not the power.
//
// THREADING: Submit and completions on the store thread; neither blocks. The …Now methods block and
// are for start-up and offline tools, before the first Submit.
// OWNERSHIP: a request's memory belongs to the disk until its OnDiskDone. Work is abandoned, never
// cancelled.
// LIMITS: queue_max requests in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace {

struct PayloadCipher;  // tiers/crypto/group_key.h

using DiskFile = uint32_t;  // number of an open file of this disk
inline constexpr DiskFile kDiskFileNone = 0xFFFFFFFF;

enum class DiskOp : uint8_t {
  kRead,        // payload: offset, length and address are multiples of 4 KiB
  kWrite,       // likewise
  kWriteTable,  // at most 4 KiB of any alignment, within one sector; copied during Submit
  kSync,    // what has been written to the file is on the drive; kNotFound: somebody has removed
            // or shortened it, and nobody will find it again
  kCreate,  // makes file `name` with `length_bytes` of space and `from` (≤ 4 KiB) at its start
  kRemove,  // the file goes, and its number; once answered, no loss of power brings it back
};

struct DiskRequest {
  uint64_t tag = 0;  // echoed
  DiskOp op = DiskOp::kRead;
  DiskFile file = kDiskFileNone;  // kCreate: a number from NewFile()
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;              // kCreate only
  std::span<std::byte> into;              // kRead
  std::span<const std::byte> from;        // kWrite, kWriteTable, kCreate
  std::string name;                       // kCreate: relative to the disk's directory
  std::shared_ptr<PayloadCipher> cipher;  // kRead, kWrite: a CipherDisk's; none: bytes as they are
};

class DiskListener {
 public:
  virtual ~DiskListener() = default;
  // kOk only when every byte is through. kIo with the errno; ENOSPC among them; kBusy: given up
  // before it began (a retry is safe). Short transfers, EAGAIN and EINTR have been retried by then.
  virtual void OnDiskDone(uint64_t tag, Status status) = 0;
};

struct DiskStats {
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t requests_in_flight = 0;
  uint64_t retries = 0;  // short transfers, EAGAIN, EINTR
  uint64_t failures = 0;
  uint64_t filesystem_bytes = 0, filesystem_free_bytes = 0;  // as of the last look
  uint64_t files_removed = 0;  // open ones that somebody else has unlinked; as of the last look
};

// How many files there may be, of the limit that is reached first.
struct FileRoom {
  uint64_t open_count = 0;
  uint64_t files_max = UINT64_MAX;
  // Of a limit that all disks of the process share: of its descriptors, and how many it would have
  // to be. 0: the limit is the disk's own.
  uint64_t fds_max = 0;
  uint64_t fds_wanted = 0;
  bool is_full() const { return open_count >= files_max; }
};

class Disk {
 public:
  virtual ~Disk() = default;
  virtual void SetListener(DiskListener* listener) = 0;

  // kBusy: the queue is full and nothing was begun. After kOk exactly one OnDiskDone(tag) follows,
  // never from inside this call.
  virtual Status Submit(const DiskRequest& request) = 0;
  // Requests accepted during one turn may go out together: call at the end of a turn.
  virtual void Flush() = 0;
  // A number for a file to be created. kDiskFileNone: as many are open as there may be.
  virtual DiskFile NewFile() = 0;
  virtual FileRoom file_room() const { return {}; }

  // Memory that many requests will use (an arena segment), under a number of the caller's: a disk
  // that can keeps it pinned, which makes each request cheaper, and goes on without where it
  // cannot. Requests need not know. REQUIRES: the number is not in use.
  virtual void RegisterBuffer(uint32_t /*index*/, std::span<std::byte> /*memory*/) {}
  // `done` follows, perhaps from inside this call: no request uses the memory any more and its
  // pages are not pinned, so that punching it returns them. REQUIRES: nothing new is submitted for
  // it.
  virtual void UnregisterBuffer(uint32_t /*index*/, const std::function<void()>& done) { done(); }

  // ---- blocking, at start and offline ----
  virtual Status ListNow(std::vector<std::string>* names) = 0;
  // kNotFound, kIo. `*length_bytes` is the file's, also with kNoSpace: as many are open as there
  // may be.
  virtual Status OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) = 0;
  // Any alignment. A read past the end is kIo.
  virtual Status ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) = 0;

  virtual uint32_t queue_max() const = 0;
  virtual DiskStats stats() const = 0;
  // "io_uring" or "threads", and why, for status.
  virtual std::string description() const = 0;
  // Where its files are, for a person; empty: nowhere.
  virtual std::string directory() const { return {}; }
};

}  // namespace terrace
