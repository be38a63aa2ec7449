// Memory like the daemon's arena but without a daemon: a populated memfd that processes share. What
// a plain memcpy reaches in it, in the same run, is the floor that benchmarks compare with.
//
// OWNERSHIP: the memfd is made once, before the workers are forked; each process has its mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace terrace::tools {

// One mapping, populated, so that no page fault is measured.
class MappedMemory {
 public:
  // fd −1: private anonymous memory. nullptr with `*why` when there is not enough.
  static std::unique_ptr<MappedMemory> Map(int fd, uint64_t byte_count, std::string* why);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  std::span<std::byte> block(uint64_t index, uint64_t block_bytes) const {
    return bytes_.subspan(index * block_bytes, block_bytes);
  }

 private:
  explicit MappedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

class FloorMemory {
 public:
  static std::unique_ptr<FloorMemory> Create(uint64_t byte_count, std::string* why);
  ~FloorMemory();
  FloorMemory(const FloorMemory&) = delete;
  FloorMemory& operator=(const FloorMemory&) = delete;

  std::unique_ptr<MappedMemory> Map(std::string* why) const {
    return MappedMemory::Map(fd_, byte_count_, why);
  }

 private:
  FloorMemory(int fd, uint64_t byte_count) : fd_(fd), byte_count_(byte_count) {}
  int fd_;
  uint64_t byte_count_;
};

}  // namespace terrace::tools
