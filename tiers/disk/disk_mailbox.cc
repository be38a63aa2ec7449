#include "tiers/disk/disk_mailbox.h"

#include <memory>

namespace terrace {

void DiskMailbox::Put(std::span<const DiskCompletion> completions) {
  waiting_.PutAll(completions, [this] {
    post_([box = weak_from_this()] {
      if (const std::shared_ptr<DiskMailbox> opened = box.lock()) opened->Open();
    });
  });
}

void DiskMailbox::Open() {
  waiting_.TakeAll(&opened_);
  if (deliver_ && !opened_.empty()) deliver_(opened_);
  opened_.clear();
}

void DiskMailbox::Close() {
  deliver_ = nullptr;
  waiting_.Close();
}

}  // namespace terrace
