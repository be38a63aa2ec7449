#include "tools/terrace/bench/floor_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "terrace/units.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

// fallocate now, so that a shortage is an error here and no SIGBUS later.
bool Allocate(int fd, uint64_t byte_count) {
  return ftruncate(fd, static_cast<off_t>(byte_count)) == 0 &&
         posix_fallocate(fd, 0, static_cast<off_t>(byte_count)) == 0;
}

std::string Shortage(uint64_t byte_count, int error) {
  return fmt::format(
      "cannot get {} of memory to compare with: {}. Use fewer --prompts or a smaller "
      "--block-bytes",
      FormatBytes(byte_count), std::strerror(error));
}

}  // namespace

std::unique_ptr<MappedMemory> MappedMemory::Map(int fd, uint64_t byte_count, std::string* why) {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* base = mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, kind | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) {
    *why = Shortage(byte_count, errno);
    return nullptr;
  }
  return std::unique_ptr<MappedMemory>(
      new MappedMemory(std::span(static_cast<std::byte*>(base), byte_count)));
}

MappedMemory::~MappedMemory() { munmap(bytes_.data(), bytes_.size()); }

std::unique_ptr<FloorMemory> FloorMemory::Create(uint64_t byte_count, std::string* why) {
  // As the arena does it: huge pages when there are any, else plain shared memory.
  const uint64_t huge_bytes = RoundUp(byte_count, 2 * kMiB);
  int fd = memfd_create("terrace-bench", MFD_CLOEXEC | MFD_HUGETLB);
  if (fd >= 0) {
    if (Allocate(fd, huge_bytes)) {
      return std::unique_ptr<FloorMemory>(new FloorMemory(fd, huge_bytes));
    }
    close(fd);
  }
  fd = memfd_create("terrace-bench", MFD_CLOEXEC);
  if (fd >= 0 && Allocate(fd, byte_count)) {
    return std::unique_ptr<FloorMemory>(new FloorMemory(fd, byte_count));
  }
  *why = Shortage(byte_count, fd < 0 ? errno : ENOMEM);
  if (fd >= 0) close(fd);
  return nullptr;
}

FloorMemory::~FloorMemory() { close(fd_); }

}  // namespace terrace::tools
