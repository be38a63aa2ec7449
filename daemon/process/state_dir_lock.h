// StateDirLock: what a daemon keeps in `state_dir` no other daemon writes over meanwhile. Both
// would believe it: what one owes a Redis server or a drive would be forgotten, and come back.
//
// THREADING: at the start; blocks.
#pragma once

#include <optional>
#include <string>

#include "daemon/config/config.h"
#include "terrace/open_file.h"
#include "terrace/status.h"

namespace terrace {

class StateDirLock {
 public:
  // Until this object's end, or the process's. Not of a daemon that keeps nothing there but
  // secrets, which others may share, where nobody has kept more before. kBusy, with `*why`: another
  // process has it. Where no lock is to be had, the log says so: nothing can be written there
  // either.
  Status Take(const DaemonConfig& config, std::string* why);
  // More than secrets is kept there, or has been, by whomever. After Take.
  bool is_needed() const { return is_needed_; }

 private:
  bool is_needed_ = false;
  std::optional<OpenFile> file_;
};

}  // namespace terrace
