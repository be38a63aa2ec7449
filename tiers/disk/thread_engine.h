// ThreadEngine: payload by pread and pwrite on threads, for where io_uring is blocked.
//
// THREADING, OWNERSHIP: as DiskEngine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tiers/disk/disk_engine.h"
#include "tiers/disk/disk_mailbox.h"
#include "tiers/disk/disk_workers.h"

namespace terrace {

class ThreadEngine final : public DiskEngine {
 public:
  struct Options {
    uint32_t threads = 8;
    DiskResultFilter result_filter;
    std::shared_ptr<DiskMailbox> mailbox;
  };
  explicit ThreadEngine(Options options);

  void Begin(std::span<const DiskTransfer> transfers) override;
  void RegisterBuffer(uint32_t index, std::span<std::byte> memory) override;
  void UnregisterBuffer(uint32_t index) override;
  bool Stop(uint64_t within_us) override;
  std::string description() const override;

 private:
  void Run(const DiskTransfer& transfer) const;

  const Options options_;
  DiskWorkers workers_;
  const std::atomic<bool>& is_stopping_;
  std::vector<DiskWorkers::Job> jobs_;
};

}  // namespace terrace
