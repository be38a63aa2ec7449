#include "tiers/disk_mailbox.h"

#include <utility>

namespace terrace {

void DiskMailbox::Put(std::span<const DiskCompletion> completions) {
  if (completions.empty()) return;
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = waiting_.empty();
    waiting_.insert(waiting_.end(), completions.begin(), completions.end());
  }
  if (was_empty) post_([box = shared_from_this()] { box->Open(); });
}

void DiskMailbox::Open() {
  {
    std::lock_guard lock(mutex_);
    std::swap(opened_, waiting_);
  }
  if (deliver_) deliver_(opened_);
  opened_.clear();
}

void DiskMailbox::Close() { deliver_ = nullptr; }

}  // namespace terrace
