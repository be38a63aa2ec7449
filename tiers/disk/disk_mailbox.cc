#include "tiers/disk/disk_mailbox.h"

#include <utility>

namespace terrace {

void DiskMailbox::Put(std::span<const DiskCompletion> completions) {
  if (completions.empty()) return;
  if (!waiting_.Put(Batch(completions.begin(), completions.end()))) return;
  post_([box = shared_from_this()] { box->Open(); });
}

void DiskMailbox::Open() {
  waiting_.TakeAll(&taken_);
  for (const Batch& batch : taken_) opened_.insert(opened_.end(), batch.begin(), batch.end());
  taken_.clear();
  if (deliver_) deliver_(opened_);
  opened_.clear();
}

// What was posted keeps this alive until it runs, if it ever does.
void DiskMailbox::Close() {
  deliver_ = nullptr;
  waiting_.Close();
}

}  // namespace terrace
