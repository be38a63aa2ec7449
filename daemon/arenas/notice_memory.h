// NoticeMemory: the notice page of one domain, as the daemon has it: mapped to be written here, and
// sealed so that nobody else can map it so.
//
// THREADING: store thread; clients read it at any time.
#pragma once

#include <string>

#include "terrace/notice_page.h"
#include "terrace/status.h"

namespace terrace {

class NoticeMemory {
 public:
  NoticeMemory() = default;
  ~NoticeMemory();
  NoticeMemory(NoticeMemory&& other) noexcept;
  NoticeMemory& operator=(NoticeMemory&&) = delete;

  // kIo if the system has no memory for it, or cannot seal it: clients are told by answers alone.
  Status Create(const std::string& domain_name);

  // What a session receives; stays this object's. −1 before Create.
  int fd() const { return fd_; }
  void Tell(protocol::ServingMode mode);

 private:
  int fd_ = -1;
  NoticePage* page_ = nullptr;
};

}  // namespace terrace
