// FileDisk: one NVMe path on a file system. It keeps the books of requests, files and buffers;
// payload goes through a DiskEngine, table entries through a thread that writes them in order, and
// what is slow (making, syncing and removing files) through another, so that neither holds up a
// read.
//
// THREADING, OWNERSHIP, LIMITS: as Disk. Requests in flight have no order, but table writes are
// done in the order submitted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tiers/disk/disk.h"
#include "tiers/disk/disk_files.h"
#include "tiers/disk/disk_mailbox.h"
#include "tiers/disk/disk_transfer.h"

namespace terrace {

enum class DiskEngineChoice : uint8_t { kAuto, kUring, kThreads };

struct DiskOptions {
  std::string directory;  // made if absent; its parent is not
  // Runs its argument on the store thread, later. Called on any thread, for as long as requests are
  // in flight.
  DiskMailbox::Post post;
  DiskEngineChoice engine =
      DiskEngineChoice::kAuto;  // kAuto: io_uring, threads where it is blocked
  DirectIoChoice direct = DirectIoChoice::kAuto;
  uint32_t queue_max = 256;
  uint32_t files_max = 4096;
  std::shared_ptr<FileBudget> budget;  // with other disks; none: files_max alone
  uint32_t buffers_max = 1024;
  uint32_t threads = 8;  // of the thread engine
  // The end waits so long for requests in flight, then leaves them (and their memory, which the
  // kernel still owns) behind.
  uint64_t stop_us = 2'000'000;
  DiskResultFilter result_filter;  // none, but to see what a failing drive would do
};

// Opens the disk at the directory, for this process alone. `why`: on failure a sentence that names
// the path, the cause and the remedy. Blocks.
Result<std::unique_ptr<Disk>> OpenDisk(DiskOptions options, std::string* why);

}  // namespace terrace
