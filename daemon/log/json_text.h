// JsonText: a JSON document as text, whatever bytes are in it: names that clients chose, paths,
// what was read back from a drive. What is no UTF-8 is replaced (U+FFFD); it must not stop the
// document.
//
// THREADING: a pure function.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace terrace {

inline std::string JsonText(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace terrace
