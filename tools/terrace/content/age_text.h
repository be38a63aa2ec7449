// Times as a person writes them on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace::tools {

// "90s", "15min", "2h", "3d", "1h30min". False on anything else, and beyond a hundred years.
bool ParseAge(std::string_view text, uint64_t* time_ms);
// The sentence that refuses it.
std::string WhyNoAge(std::string_view option, std::string_view text);

}  // namespace terrace::tools
