#include "cuda/host/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace terrace {
namespace {

constexpr std::align_val_t kAlignment{4096};

}  // namespace

Status AllocateHostMemory(uint64_t byte_count, void** address) {
  if (byte_count == 0) return Status(StatusCode::kInvalid, "byte_count: 1 or more");
  *address = ::operator new(byte_count, kAlignment, std::nothrow);
  return *address != nullptr ? Status::Ok() : Status(StatusCode::kNoSpace, "no memory");
}

void FreeHostMemory(void* address) { ::operator delete(address, kAlignment); }

Status CreateHostSlab(uint64_t byte_count, int32_t* fd) {
  if (byte_count == 0 || byte_count % kHostSlabUnitBytes != 0) {
    return Status(StatusCode::kInvalid, "byte_count: a slab is a multiple of 2 MiB");
  }
  const int created = memfd_create("terrace-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (created < 0) return Status(StatusCode::kIo, "memfd_create for a slab", errno);
  // A slab that shrank would fault whoever has it mapped. It is paid for now, as a GPU's is, so
  // that no write meets a want of memory later.
  const auto length = static_cast<off_t>(byte_count);
  if (ftruncate(created, length) != 0 ||
      fcntl(created, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      fallocate(created, 0, 0, length) != 0) {
    const int error = errno;
    close(created);
    const bool is_full = error == ENOSPC || error == ENOMEM;
    return is_full ? Status(StatusCode::kNoSpace, "no memory for a slab", error)
                   : Status(StatusCode::kIo, "the memfd of a slab cannot be sized", error);
  }
  *fd = created;
  return Status::Ok();
}

Status MapHostSlab(int32_t fd, uint64_t byte_count, SlabAccess access, void** address) {
  struct stat file;
  if (fstat(fd, &file) != 0) return Status(StatusCode::kIo, "fstat of a slab", errno);
  if (byte_count == 0 || static_cast<uint64_t>(file.st_size) != byte_count) {
    return Status(StatusCode::kInvalid, "byte_count: not the slab's own size");
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(StatusCode::kInvalid, "the slab is not sealed against shrinking");
  }
  const int protection = access == SlabAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = mmap(nullptr, byte_count, protection, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return Status(StatusCode::kIo, "mmap of a slab", errno);
  if (madvise(mapped, byte_count, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(mapped, byte_count);
    return Status(StatusCode::kIo, "a slab cannot be kept from children", error);
  }
  *address = mapped;
  return Status::Ok();
}

Status UnmapHostSlab(void* address, uint64_t byte_count) {
  if (munmap(address, byte_count) == 0) return Status::Ok();
  return Status(StatusCode::kIo, "munmap of a slab", errno);
}

}  // namespace terrace
