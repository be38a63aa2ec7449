// LineTooDeep: the TOML library follows a dotted name by one call a part, and so does whatever
// destroys the tables of it: how many parts there are is looked at before. (Lists and tables in
// braces it limits itself.)
//
// THREADING: a pure function.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

inline constexpr uint32_t kNamePartsMax = 32;  // those of a configuration's keys are two at most

// The line, from 1, of the first name of more parts; 0 if there is none.
uint32_t LineTooDeep(std::string_view toml_text);

}  // namespace terrace
