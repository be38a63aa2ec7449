#include "tools/terrace/cli/json_text.h"

#include <fmt/core.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>

namespace terrace::tools {
namespace {

// Where `text` first goes deeper than it may. Right for all JSON; what is none is refused anyway,
// as far as its brackets let anybody go.
std::optional<size_t> WhereTooDeep(std::string_view text) {
  uint32_t depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      is_in_string = c != '"';
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kJsonDepthMax) return i;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return std::nullopt;
}

}  // namespace

nlohmann::json ParseJson(std::string_view text, std::string* why) {
  nlohmann::json discarded(nlohmann::json::value_t::discarded);
  if (const std::optional<size_t> where = WhereTooDeep(text)) {
    *why = fmt::format("has lists and objects {} deep at byte {} of {}, the limit is {}.",
                       kJsonDepthMax + 1, *where + 1, text.size(), kJsonDepthMax);
    return discarded;
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    *why = fmt::format("is no JSON from byte {} of {} on", error.byte, text.size());
    return discarded;
  } catch (const nlohmann::json::exception&) {
    *why = fmt::format("is JSON of {} bytes with a number that no type holds", text.size());
    return discarded;
  }
}

std::string JsonText(const nlohmann::json& document, int indent) {
  return document.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace terrace::tools
