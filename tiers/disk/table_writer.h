// TableWriter: table entries on their way to the page cache. One thread writes what has gathered,
// entries that lie side by side in one call: most of what an entry costs is waking up for it.
//
// THREADING: Add on the store thread, WriteAll on one thread at a time.
// OWNERSHIP: the memory of a transfer stays until its completion is in the mailbox.
// INVARIANT: bytes that two transfers both cover are written in the order added.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "tiers/disk/disk_mailbox.h"
#include "tiers/disk/disk_transfer.h"

namespace terrace {

class TableWriter {
 public:
  struct Options {
    DiskResultFilter result_filter;
    std::shared_ptr<DiskMailbox> mailbox;
  };
  explicit TableWriter(Options options) : options_(std::move(options)) {}

  // Takes the transfers and leaves the vector empty. True: begin a WriteAll, none is under way.
  bool Add(std::vector<DiskTransfer>* transfers);
  // Returns when nothing is left. `is_stopping`: what is not written by then is not answered.
  void WriteAll(const std::atomic<bool>& is_stopping);

 private:
  void WriteBatch(const std::atomic<bool>& is_stopping);
  bool WriteTogether(std::span<const DiskTransfer> run);
  void WriteOne(const DiskTransfer& transfer, const std::atomic<bool>& is_stopping);

  const Options options_;
  std::vector<DiskTransfer> batch_;          // WriteAll's
  std::vector<DiskCompletion> completions_;  // likewise

  std::mutex mutex_;
  std::vector<DiskTransfer> waiting_;
  bool is_writing_ = false;
};

}  // namespace terrace
