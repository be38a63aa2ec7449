// The path where a daemon listens on a Unix socket: one terraced at a time has it, by a lock on
// PATH.lock, and nothing of anybody else is replaced there.
#pragma once

#include <string>

#include "terrace/status.h"

namespace terrace {

// Two daemons that start at once must not both find a socket stale: whoever holds the lock decides.
// It falls with `*lock_fd`, which is the caller's, also where it is not kOk. kBusy: another
// terraced has it; kInvalid: a symbolic link is there; kIo: it cannot be made. `*why` has no name
// in front.
Status LockSocketPath(const std::string& path, int* lock_fd, std::string* why);

// Removes a socket that nobody listens on; kOk as well if nothing is there. kBusy: somebody
// listens; kInvalid: it is no socket; kIo: nobody can tell, or it stays. REQUIRES: the lock is
// held.
Status FreeSocketPath(const std::string& path, std::string* why);

}  // namespace terrace
