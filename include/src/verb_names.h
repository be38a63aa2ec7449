// The names of the verbs that a client sends: docs/PROTOCOL.md, the daemon's sentences and those of
// libterrace have them from here.
//
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "terrace/protocol.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

// In the order of their numbers, which begin at 1.
inline constexpr auto kVerbNames = std::to_array<std::string_view>(
    {"Hello",        "Open",      "Match",       "Acquire",      "Prefetch",    "Join",
     "Release",      "Cancel",    "Touch",       "Reserve",      "Commit",      "Abort",
     "Query",        "Wait",      "Evict",       "Pin",          "Reset",       "Stats",
     "List",         "Unmapped",  "HitRate",     "Explain",      "TraceRecord", "Fsck",
     "DeviceAttach", "OrderDone", "PinTurn",     "DeviceReport", "Drain",       "Config",
     "EvictWhere",   "NamedPin",  "OperatorLog", "Diagnose"});
static_assert(kVerbNames.size() == static_cast<size_t>(protocol::kVerbLast));

// `otherwise`: of a verb that no client sends.
constexpr std::string_view VerbNameOr(protocol::Verb verb, std::string_view otherwise) {
  const size_t index = static_cast<size_t>(verb) - 1;  // of 0 beyond all
  return index < kVerbNames.size() ? kVerbNames[index] : otherwise;
}

}  // namespace terrace
