// DiskFiles: the directory of one NVMe path and the files open in it. A file has two descriptors:
// one for payload, past the page cache where the file system can, and one through it for tables.
//
// THREADING: the methods that say so block; all may be called on any thread, Create and Remove by
// one at a time.
// OWNERSHIP: descriptors stay open until Remove or the end.
// LIMITS: files_max files; while it lives nobody else opens the directory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "terrace/status.h"
#include "tiers/disk/disk.h"
#include "tiers/disk/disk_transfer.h"
#include "tiers/disk/file_budget.h"

namespace terrace {

inline constexpr char kDiskLockName[] = "lock";  // in the disk's directory: who uses it

enum class DirectIoChoice : uint8_t { kAuto, kNever };

class DiskFiles {
 public:
  struct Options {
    std::string directory;
    DirectIoChoice direct = DirectIoChoice::kAuto;
    uint32_t files_max = 4096;
    std::shared_ptr<FileBudget> budget;  // with other disks; none: files_max alone
    DiskResultFilter result_filter;
    uint64_t lock_wait_us = 30'000'000;  // for the kernel, after the kill of who had the directory
  };
  struct Descriptors {
    int payload = -1;
    int table = -1;
  };

  // Makes the directory (its parent must be there) and locks it. Blocks.
  static Result<std::unique_ptr<DiskFiles>> Open(Options options, std::string* why);
  ~DiskFiles();

  // Whoever keeps it open keeps the directory locked.
  int lock_fd() const { return lock_fd_; }
  // kDiskFileNone: as many are open as room() says.
  DiskFile Reserve();
  FileRoom room() const;
  // -1 where the file is not open.
  Descriptors descriptors(DiskFile file) const;

  // Blocks. On failure nothing of it is left but the number, which is free again.
  Status Create(DiskFile file, const std::string& name, uint64_t length_bytes,
                std::span<const std::byte> from);
  // What has been written to the file, either way, is on the drive. kNotFound: the file is no
  // longer in the directory, or shorter than it was. Blocks.
  Status Sync(DiskFile file);
  // Blocks.
  Status Remove(DiskFile file);
  // Names of regular files, without the lock. Blocks.
  Status List(std::vector<std::string>* names) const;
  // Blocks.
  Status OpenExisting(const std::string& name, DiskFile* file, uint64_t* length_bytes);

  // Looks at the file system again. Blocks.
  void RefreshSpace();
  // Counts open files that somebody has removed. Blocks; not while Remove is under way.
  void LookForRemoved();
  uint64_t removed_count() const { return removed_count_; }
  uint64_t filesystem_bytes() const { return filesystem_bytes_; }
  uint64_t filesystem_free_bytes() const { return filesystem_free_bytes_; }
  // "O_DIRECT", or why not.
  const std::string& payload_description() const { return payload_description_; }

 private:
  struct File {
    Descriptors descriptors;
    std::string name;
    uint64_t length_bytes = 0;
    bool is_reserved = false;
  };

  explicit DiskFiles(Options options) : options_(std::move(options)) {}
  Status OpenDirectory(std::string* why);
  Status Lock(std::string* why);
  Status OpenDirectoryAgain();
  void ChoosePayloadFlags();
  Status OpenBoth(const std::string& name, Descriptors* descriptors) const;
  Status Fill(const Descriptors& descriptors, uint64_t length_bytes,
              std::span<const std::byte> from);
  void Forget(DiskFile file);
  void GiveBack();

  const Options options_;
  int directory_fd_ = -1;
  int lock_fd_ = -1;
  int payload_flags_ = 0;
  std::string payload_description_;
  std::atomic<uint64_t> filesystem_bytes_ = 0;
  std::atomic<uint64_t> filesystem_free_bytes_ = 0;
  std::atomic<uint64_t> removed_count_ = 0;

  std::atomic<uint32_t> reserved_count_ = 0;
  mutable std::mutex mutex_;
  std::vector<File> files_;
};

// Fills `into` from the file, again and again as TransferProgress says; blocks. `is_stopping` ends
// the trying. Returns what the progress came to.
Status TransferNow(const DiskTransfer& transfer, TransferProgress* progress,
                   const DiskResultFilter& filter, const std::atomic<bool>& is_stopping);

}  // namespace terrace
