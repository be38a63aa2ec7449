#include "tiers/disk/disk_mailbox.h"

#include <memory>

namespace terrace {

void DiskMailbox::Put(std::span<const DiskCompletion> completions) {
  if (completions.empty()) return;
  if (!waiting_.Put(Batch(completions.begin(), completions.end()))) return;
  post_([box = weak_from_this()] {
    if (const std::shared_ptr<DiskMailbox> opened = box.lock()) opened->Open();
  });
}

void DiskMailbox::Open() {
  waiting_.TakeAll(&taken_);
  for (const Batch& batch : taken_) opened_.insert(opened_.end(), batch.begin(), batch.end());
  taken_.clear();
  if (deliver_) deliver_(opened_);
  opened_.clear();
}

void DiskMailbox::Close() {
  deliver_ = nullptr;
  waiting_.Close();
}

}  // namespace terrace
