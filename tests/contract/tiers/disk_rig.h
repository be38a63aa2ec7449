// DiskRig: a disk in a directory of its own, and the store thread's loop for it: completions are
// collected while the test waits, and nowhere else.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tiers/disk/disk.h"
#include "tiers/disk/file_disk.h"

namespace terrace {

// Calls posted to the store thread, run by the thread that waits.
class StoreLoop {
 public:
  DiskMailbox::Post post();
  // Runs what was posted until `is_over`; false after half a minute without it.
  bool RunUntil(const std::function<bool()>& is_over);

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable has_calls;
    std::deque<std::function<void()>> calls;
  };
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

// A fresh directory under `parent`, removed at the end with all in it.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Memory as the arena has it: shared, mapped, aligned.
class SharedMemory {
 public:
  explicit SharedMemory(uint64_t length_bytes);
  ~SharedMemory();
  std::span<std::byte> bytes() { return bytes_; }
  void Punch();
  uint64_t resident_bytes() const;

 private:
  int fd_ = -1;
  std::span<std::byte> bytes_;
};

class DiskRig : public DiskListener {
 public:
  explicit DiskRig(const std::string& parent);
  // A disk in `directory()` with `options`, whose directory and post are filled in.
  void Open(DiskOptions options);
  void Close() { disk_.reset(); }
  Disk& disk() { return *disk_; }
  StoreLoop& loop() { return loop_; }
  std::string directory() const { return scratch_.path() + "/domain"; }

  // Submits and flushes. The tag is the rig's.
  Result<uint64_t> Begin(DiskRequest request);
  Status Await(uint64_t tag);
  Status Do(DiskRequest request);
  // A file of `length_bytes`, all zero but its first sector.
  DiskFile MakeFile(const std::string& name, uint64_t length_bytes);

  size_t done_count() const { return done_.size(); }
  void OnDiskDone(uint64_t tag, Status status) override;

 private:
  ScratchDirectory scratch_;
  StoreLoop loop_;
  std::unique_ptr<Disk> disk_;
  uint64_t next_tag_ = 1;
  std::map<uint64_t, Status> done_;
};

// `length_bytes` that differ with the seed and with every position.
std::vector<std::byte> Pattern(uint64_t length_bytes, uint64_t seed);
void FillPattern(std::span<std::byte> bytes, uint64_t seed);
bool HasPattern(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace terrace
