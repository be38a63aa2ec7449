#include "client/session/notice_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace terrace::client {

NoticeBoard::~NoticeBoard() {
  if (page_ != nullptr) munmap(const_cast<NoticePage*>(page_), kNoticePageBytes);
}

Status NoticeBoard::Open() {
  void* const mapped =
      mmap(nullptr, kNoticePageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return Status(StatusCode::kNoSpace, "no memory for a page", errno);
  page_ = static_cast<const NoticePage*>(mapped);
  return Status::Ok();
}

void NoticeBoard::Show(const GuardedFd& page) {
  if (page_ != nullptr && !Map(page)) Clear();
}

// Over what is there, in one step: whoever reads meanwhile reads one or the other.
bool NoticeBoard::Map(const GuardedFd& page) {
  struct stat status;
  if (!page.is_open() || fstat(page.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) < kNoticePageBytes) {
    return false;
  }
  // Else a daemon gone wrong could take the page away under a call.
  const int seals = fcntl(page.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  const void* const mapped = mmap(const_cast<NoticePage*>(page_), kNoticePageBytes, PROT_READ,
                                  MAP_SHARED | MAP_FIXED, page.get(), 0);
  return mapped != MAP_FAILED && page_->magic.load(std::memory_order_acquire) == kNoticeMagic;
}

// A page that was mapped stays so if even this cannot be had; it is the daemon's that is gone.
void NoticeBoard::Clear() {
  (void)mmap(const_cast<NoticePage*>(page_), kNoticePageBytes, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

}  // namespace terrace::client
