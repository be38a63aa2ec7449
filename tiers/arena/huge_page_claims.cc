#include "tiers/arena/huge_page_claims.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace terrace {
namespace {

using Range = HugePageClaims::Range;

// A shared mapping without MAP_NORESERVE asks the kernel for just that, other processes' claims
// considered; the claim is the file's and outlives the mapping.
Status Claim(const Range& range) {
  void* const mapped = ::mmap(nullptr, range.length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                              range.fd, static_cast<off_t>(range.offset_bytes));
  if (mapped == MAP_FAILED) return Status(StatusCode::kIo, "no huge pages are free", errno);
  ::munmap(mapped, range.length_bytes);
  return Status::Ok();
}

void GiveUp(const Range& range) {
  for (const int mode : {0, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE}) {
    int result = 0;
    do {
      result = ::fallocate(range.fd, mode, static_cast<off_t>(range.offset_bytes),
                           static_cast<off_t>(range.length_bytes));
    } while (result != 0 && errno == EINTR);
  }
}

}  // namespace

Status HugePageClaims::ClaimAll(const std::vector<Range>& ranges) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Status status = Claim(ranges[i]);
    if (!status.ok()) {
      for (; i > 0; --i) GiveUpLast();
      return status;
    }
    held_.push_back(ranges[i]);
    held_bytes_ += ranges[i].length_bytes;
  }
  return Status::Ok();
}

Status HugePageClaims::Use(const Range& range) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&range](const Range& held) {
    return held.fd == range.fd && held.offset_bytes == range.offset_bytes;
  };
  const auto found = std::ranges::find_if(held_, is_it);
  if (found != held_.end()) {
    held_bytes_ -= found->length_bytes;
    held_.erase(found);
    return Status::Ok();
  }
  Status status = Claim(range);
  while (!status.ok() && !held_.empty()) {
    GiveUpLast();
    status = Claim(range);
  }
  return status;
}

void HugePageClaims::Trim() {
  const std::lock_guard lock(mutex_);
  while (held_bytes_ > keep_bytes_.load(std::memory_order_relaxed)) GiveUpLast();
}

void HugePageClaims::Forget(int fd) {
  const std::lock_guard lock(mutex_);
  std::erase_if(held_, [&](const Range& held) {
    if (held.fd == fd) held_bytes_ -= held.length_bytes;
    return held.fd == fd;
  });
}

uint64_t HugePageClaims::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

void HugePageClaims::GiveUpLast() {
  GiveUp(held_.back());
  held_bytes_ -= held_.back().length_bytes;
  held_.pop_back();
}

}  // namespace terrace
