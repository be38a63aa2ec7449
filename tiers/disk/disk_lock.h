// TakeLock(): the lock of a directory that one process at a time may use, as the disk takes it and
// whoever looks at what the disk left.
#pragma once

#include <cstdint>

#include "terrace/lock_holder.h"

namespace terrace {

struct LockRefusal {
  int error = 0;          // errno; 0: the lock is held; EWOULDBLOCK: `holder` has it
  LockHolder holder;      // of EWOULDBLOCK
  bool is_alive = false;  // it is seen from here, or of unknown number: nobody waited for its end
};

// Exclusive. Who lives is not waited for; but what a killed process had of a drive or of io_uring
// the kernel gives back in its own time, and its locks last: for so long this waits.
LockRefusal TakeLock(int lock_fd, uint64_t wait_us);

}  // namespace terrace
