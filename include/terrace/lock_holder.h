// LockHolder: which process has a lock file, as the file itself says: a line with its number.
//
// The lock is flock's; the number is for the sentence that refuses somebody else. A lock without it
// holds all the same: the drive may be full.
#pragma once

#include <string>

namespace terrace {

struct LockHolder {
  int pid = 0;  // 0: the file does not say

  static LockHolder Read(int lock_fd);
  // That this process has it. REQUIRES: the lock is held.
  static void NameMyself(int lock_fd);

  // "process 17", or that its number is not known.
  std::string Text() const;
};

}  // namespace terrace
