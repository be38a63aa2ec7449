#include "daemon/arenas/notice_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

// Of Linux 5.1; older headers do not name it.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

// What is mapped before stays writable, and nothing after.
constexpr int kNoticeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status Failed(const char* what) { return Status(StatusCode::kIo, what, errno); }

}  // namespace

NoticeMemory::~NoticeMemory() {
  if (page_ != nullptr) munmap(page_, kNoticePageBytes);
  if (fd_ >= 0) close(fd_);
}

NoticeMemory::NoticeMemory(NoticeMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), page_(std::exchange(other.page_, nullptr)) {}

Status NoticeMemory::Create(const std::string& domain_name) {
  TERRACE_CHECK(page_ == nullptr, "clients read the page that they were given, and no other");
  const int fd =
      memfd_create(("terrace-notice-" + domain_name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create");
  Status status;
  void* mapped = MAP_FAILED;
  // A memfd is everybody's to open again; whoever is handed this one has it open to read.
  if (fchmod(fd, 0600) != 0) {
    status = Failed("fchmod");
  } else if (ftruncate(fd, static_cast<off_t>(kNoticePageBytes)) != 0) {
    status = Failed("ftruncate");
  } else if (mapped = mmap(nullptr, kNoticePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
             mapped == MAP_FAILED) {
    status = Failed("mmap");
  } else if (fcntl(fd, F_ADD_SEALS, kNoticeSeals) != 0) {
    status = Failed("F_ADD_SEALS");
    munmap(mapped, kNoticePageBytes);
  }
  if (!status.ok()) {
    close(fd);
    return status;
  }
  fd_ = fd;
  page_ = static_cast<NoticePage*>(mapped);
  page_->magic.store(kNoticeMagic, std::memory_order_release);
  return Status::Ok();
}

void NoticeMemory::Tell(protocol::ServingMode mode) {
  if (page_ != nullptr) page_->mode.store(static_cast<uint32_t>(mode), std::memory_order_release);
}

}  // namespace terrace
