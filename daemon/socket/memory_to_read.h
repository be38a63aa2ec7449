// Memory that a reader may have: another open file of the same memory, for reading alone. Of it the
// kernel refuses to map to write, to protect anew, to cut and to seal. What else it could be opened
// by, a path below /proc, the file's own mode refuses to every user but the daemon's own and root.
//
// THREADING: any thread.
#pragma once

#include <span>
#include <string>

namespace terrace {

// The caller closes it. −1 with errno: none that would be safe to hand out.
int OpenToRead(int memory_fd);

// Whether readers can be handed these at all; if not, `*why` says why and what helps.
bool CanBeOpenedToRead(std::span<const int> memory_fds, std::string* why);

}  // namespace terrace
