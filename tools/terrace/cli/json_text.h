// ParseJson, JsonText. JSON that comes from elsewhere: a daemon's answer, a file that somebody
// names. What is built of it is copied, shown and destroyed level by level on the stack, so how
// deep it goes is looked at before anything is built.
//
// THREADING: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace terrace::tools {

// All that Terrace and its models' configurations write has fewer than ten.
inline constexpr uint32_t kJsonDepthMax = 64;

// A discarded value if `text` cannot be read; then `*why`, which goes on where "the answer" or the
// name of a file stood. Throws nothing.
nlohmann::json ParseJson(std::string_view text, std::string* why);

// Whatever bytes are in it, names of files among them: what is no UTF-8 is replaced (U+FFFD).
// Indented by so much a level; negative: one line.
std::string JsonText(const nlohmann::json& document, int indent = -1);

}  // namespace terrace::tools
