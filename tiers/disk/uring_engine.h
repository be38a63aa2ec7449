// UringEngine: payload by io_uring. One thread owns the ring: it takes what the store thread has
// asked since it last looked, submits all of it in one call, waits, and hands back what came.
//
// THREADING: as DiskEngine. An eventfd that the ring itself reads wakes the thread, and is written
// only while the thread sleeps.
// OWNERSHIP: as DiskEngine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tiers/disk/disk_engine.h"
#include "tiers/disk/disk_mailbox.h"

namespace terrace {

class UringEngine final : public DiskEngine {
 public:
  struct Options {
    uint32_t queue_max = 0;
    uint32_t files_max = 0;
    uint32_t buffers_max = 0;
    int held_fd = -1;  // UringRing::Options
    DiskResultFilter result_filter;
    std::shared_ptr<DiskMailbox> mailbox;
  };
  // nullptr with `why` where io_uring is blocked.
  static std::unique_ptr<UringEngine> Start(Options options, std::string* why);
  ~UringEngine() override;

  void Begin(std::span<const DiskTransfer> transfers) override;
  void FileOpened(DiskFile file, int fd) override;
  void FileClosed(DiskFile file) override;
  void RegisterBuffer(uint32_t index, std::span<std::byte> memory) override;
  void UnregisterBuffer(uint32_t index) override;
  bool Stop(uint64_t within_us) override;
  std::string description() const override;

 private:
  struct Loop;
  explicit UringEngine(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
};

}  // namespace terrace
