// MaskedAddress: an address as a person may be shown it who may not see the login in it. None has
// one by our leave; a URL that was copied from somewhere else may.
//
// Pure.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// "redis://user:secret@host:6379/0" → "redis://user:***@host:6379/0", and
// "host:6379,password=secret" → "host:6379,***": what is before the last '@' goes, but a scheme and
// a plain name in front of ':', and so does what is behind "?", "#", "," , ";" or a blank.
std::string MaskedAddress(std::string_view text);

}  // namespace terrace
