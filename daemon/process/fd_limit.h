// How many files the daemon may have open.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace {

// Raises the soft limit to what so many sessions need, beside `others`. kNoSpace or kIo: `*why`
// names the limit and the remedy.
Status RaiseFdLimit(uint32_t sessions_max, uint64_t others, std::string* why);

}  // namespace terrace
