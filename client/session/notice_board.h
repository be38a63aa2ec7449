// NoticeBoard: the notice page of the daemon that is connected, or was last, so that a call knows
// without asking whether an operator has the domain bypassed. What a daemon said last stands until
// the next one says otherwise: a daemon that is stopped while bypassed leaves its clients so.
//
// THREADING: any thread reads; Show is the background thread's. The page has one address for good:
// what comes is mapped over what was.
#pragma once

#include <cstddef>

#include "client/link/fork_guard.h"
#include "terrace/notice_page.h"
#include "terrace/status.h"

namespace terrace::client {

class NoticeBoard {
 public:
  NoticeBoard() = default;
  ~NoticeBoard();
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;

  // Nothing is bypassed yet. kNoSpace if there is no memory for a page. Before anything else.
  Status Open();
  // The page that came with a Hello; none, or one that cannot be, is of a daemon that bypasses
  // nothing that this process could learn.
  void Show(const GuardedFd& page);
  // One load.
  bool is_bypassed() const {
    return page_ != nullptr && page_->mode.load(std::memory_order_acquire) ==
                                   static_cast<uint32_t>(protocol::ServingMode::kBypassed);
  }

 private:
  bool Map(const GuardedFd& page);
  void Clear();
  bool PutUp(void* mapped);

  NoticePage* page_ = nullptr;  // read-only
};

}  // namespace terrace::client
