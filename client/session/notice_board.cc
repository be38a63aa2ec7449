#include "client/session/notice_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace terrace::client {
namespace {

void* MapBlankPage() {
  return mmap(nullptr, kNoticePageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

}  // namespace

NoticeBoard::~NoticeBoard() {
  if (page_ != nullptr) munmap(page_, kNoticePageBytes);
}

Status NoticeBoard::Open() {
  void* const mapped = MapBlankPage();
  if (mapped == MAP_FAILED) return Status(StatusCode::kNoSpace, "no memory for a page", errno);
  page_ = static_cast<NoticePage*>(mapped);
  return Status::Ok();
}

void NoticeBoard::Show(const GuardedFd& page) {
  if (page_ != nullptr && !Map(page)) Clear();
}

bool NoticeBoard::Map(const GuardedFd& page) {
  struct stat status;
  if (!page.is_open() || fstat(page.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) < kNoticePageBytes) {
    return false;
  }
  // Else a daemon gone wrong could take the page away under a call.
  const int seals = fcntl(page.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  void* const mapped = mmap(nullptr, kNoticePageBytes, PROT_READ, MAP_SHARED, page.get(), 0);
  if (mapped == MAP_FAILED) return false;
  const uint32_t magic =
      static_cast<const NoticePage*>(mapped)->magic.load(std::memory_order_acquire);
  if (magic == kNoticeMagic) return PutUp(mapped);
  munmap(mapped, kNoticePageBytes);
  return false;
}

// A page that was mapped stays so if even this cannot be had; it is the daemon's that is gone.
void NoticeBoard::Clear() {
  void* const mapped = MapBlankPage();
  if (mapped != MAP_FAILED) PutUp(mapped);
}

// Over what is there, in one step: whoever reads meanwhile reads one or the other.
bool NoticeBoard::PutUp(void* mapped) {
  const bool is_up = mremap(mapped, kNoticePageBytes, kNoticePageBytes,
                            MREMAP_MAYMOVE | MREMAP_FIXED, page_) != MAP_FAILED;
  if (!is_up) munmap(mapped, kNoticePageBytes);
  return is_up;
}

}  // namespace terrace::client
