// DiskEngine: the part of a disk that moves payload. Implementations: an io_uring with the one
// thread that owns it, and a pool of threads that read and write.
//
// THREADING: every method on the store thread; none blocks but Stop. Answers go to the mailbox.
// INVARIANT: what is asked takes effect in the order asked; transfers have no order among each
// other.
// LIMITS: the disk above never has more than queue_max transfers under way.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tiers/disk/disk.h"
#include "tiers/disk/disk_transfer.h"

namespace terrace {

class DiskEngine {
 public:
  virtual ~DiskEngine() = default;

  // A completion of kind kRequest follows for each.
  virtual void Begin(std::span<const DiskTransfer> transfers) = 0;

  // REQUIRES: no transfer of the file is under way (FileClosed).
  virtual void FileOpened(DiskFile /*file*/, int /*fd*/) {}
  virtual void FileClosed(DiskFile /*file*/) {}

  // kBufferRegistered follows; not kOk: the memory is to be used unregistered.
  virtual void RegisterBuffer(uint32_t index, std::span<std::byte> memory) = 0;
  // kBufferUnregistered follows once the pages are free of the kernel. REQUIRES: kBufferRegistered
  // came, no transfer under way uses it.
  virtual void UnregisterBuffer(uint32_t index) = 0;

  // Ends the threads. Transfers under way may take until `within_us`. False: some did not end; the
  // kernel still owns their memory, and what serves them is left alone for good.
  // REQUIRES: called once, before the destructor.
  virtual bool Stop(uint64_t within_us) = 0;

  virtual std::string description() const = 0;
};

}  // namespace terrace
