// SessionRole: whether a session may store. A reader's memory is handed over to be read only, so
// that what others committed stays as it is whatever the reader's process does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

enum class SessionRole : uint8_t { kWriter, kReader };

// Why a reader is not served `what`, and what helps.
std::string RefusalOfReader(std::string_view what, uint32_t uid);

}  // namespace terrace
