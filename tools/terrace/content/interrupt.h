// Ctrl-C as a wish: what is under way ends where it can, and tells how far it came.
#pragma once

#include <atomic>

namespace terrace::tools {

// True from the first SIGINT or SIGTERM on; the second ends the program as ever. Installed by the
// first call.
const std::atomic<bool>& IsInterrupted();

}  // namespace terrace::tools
