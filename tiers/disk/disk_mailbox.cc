#include "tiers/disk/disk_mailbox.h"

#include <utility>

namespace terrace {

void DiskMailbox::Put(std::span<const DiskCompletion> completions) {
  if (completions.empty()) return;
  std::lock_guard lock(mutex_);
  if (post_ == nullptr) return;
  if (waiting_.empty()) post_([box = shared_from_this()] { box->Open(); });
  waiting_.insert(waiting_.end(), completions.begin(), completions.end());
}

void DiskMailbox::Open() {
  {
    std::lock_guard lock(mutex_);
    std::swap(opened_, waiting_);
  }
  if (deliver_) deliver_(opened_);
  opened_.clear();
}

// What was posted keeps this alive until it runs, if it ever does.
void DiskMailbox::Close() {
  deliver_ = nullptr;
  std::lock_guard lock(mutex_);
  post_ = nullptr;
}

}  // namespace terrace
