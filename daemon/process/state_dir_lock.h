// StateDirLock: what a daemon keeps in `state_dir` no other daemon writes over meanwhile. Both
// would believe it: what one owes a Redis server or a drive would be forgotten, and come back.
//
// THREADING: at the start; blocks.
#pragma once

#include <cstdint>
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
  // Whether blocks may lie anywhere beside this process, its own or those of whoever was there
  // before. After Take.
  enum class Blocks : uint8_t { kNowhere, kPerhaps, kSomewhere };
  Blocks blocks() const { return blocks_; }

 private:
  Blocks blocks_ = Blocks::kNowhere;
  std::optional<OpenFile> file_;
};

}  // namespace terrace
