#include "tools/terrace/content/age_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "terrace/protocol_operator.h"

namespace terrace::tools {
namespace {

struct Unit {
  std::string_view name;
  uint64_t time_ms;
};
constexpr std::array<Unit, 7> kUnits = {{{"ms", 1},
                                         {"s", 1'000},
                                         {"m", 60'000},
                                         {"min", 60'000},
                                         {"h", 3'600'000},
                                         {"d", 86'400'000},
                                         {"w", 604'800'000}}};

}  // namespace

bool ParseAge(std::string_view text, uint64_t* time_ms) {
  if (text.empty()) return false;
  uint64_t sum_ms = 0;
  while (!text.empty()) {
    uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    const size_t letters = std::min(text.find_first_of("0123456789"), text.size());
    const auto unit = std::ranges::find(kUnits, text.substr(0, letters), &Unit::name);
    if (unit == kUnits.end()) return false;
    if (count > protocol::kEvictWhereIdleMsMax / unit->time_ms) return false;
    sum_ms += count * unit->time_ms;
    if (sum_ms > protocol::kEvictWhereIdleMsMax) return false;
    text.remove_prefix(letters);
  }
  *time_ms = sum_ms;
  return true;
}

std::string WhyNoAge(std::string_view option, std::string_view text) {
  return fmt::format(
      "{} '{}' is no time: write a number and its unit (s, min, h, d or w), such as 90s, 15min, 2h "
      "or 1d12h, up to 100 years",
      option, text);
}

}  // namespace terrace::tools
