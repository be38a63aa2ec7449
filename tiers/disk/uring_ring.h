// UringRing: an io_uring set up as far as this kernel goes: for one submitting thread, with
// completions run when that thread asks, tables for files and buffers, and closed to every
// operation but the few that disks need.
//
// THREADING: one thread, the one that called Open.
// OWNERSHIP: the ring must have nothing under way when it is destroyed.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "terrace/status.h"

namespace terrace {

class UringRing {
 public:
  struct Options {
    uint32_t entries = 0;
    uint32_t files_max = 0;    // rows of the file table
    uint32_t buffers_max = 0;  // rows of the buffer table
    // Stays open for as long as the kernel works for this ring, even if the process is killed and
    // its descriptors are gone; -1: none.
    int held_fd = -1;
  };

  UringRing() = default;
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // kUnsupported with `why` where io_uring is blocked or too old.
  Status Open(const Options& options, std::string* why);

  io_uring* get() { return &ring_; }

  // False: use the descriptor itself.
  bool SetFile(uint32_t index, int fd);
  void ClearFile(uint32_t index);
  // `tag` completes when the buffer has been cleared and nothing uses its pages any more.
  Status SetBuffer(uint32_t index, std::span<std::byte> memory, uint64_t tag);
  Status ClearBuffer(uint32_t index);

  // The kernel's features in use, for people.
  const std::string& description() const { return description_; }

 private:
  Status SetUp(uint32_t entries, std::string* why);
  bool HasOperations();
  void MakeTables(const Options& options);
  bool Restrict();

  io_uring ring_{};
  uint32_t flags_ = 0;
  uint32_t files_max_ = 0;
  uint32_t buffers_max_ = 0;
  bool is_holding_ = false;  // held_fd, in the row behind the others
  bool is_open_ = false;
  std::string description_;
};

}  // namespace terrace
