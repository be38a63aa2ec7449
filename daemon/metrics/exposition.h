// Exposition: a Snapshot in Prometheus' text form. docs/METRICS.md says what each metric means.
//
// LIMITS: kGroupsShownMax groups over all domains, in equal shares of kGroupsOfDomainMin at least;
// what else there is of a domain, and what groups had counted that are gone, is told as one.
#pragma once

#include <string>

#include "daemon/telemetry/metrics.h"

namespace terrace {

inline constexpr size_t kGroupsShownMax = 256;
inline constexpr size_t kGroupsOfDomainMin = 4;
inline constexpr char kGroupOther[] = "\u2026other";  // groups' names are ASCII: none is called so

// False: this program was built without the library that writes the form.
bool HasExposition();
// REQUIRES: HasExposition().
std::string Exposition(const Snapshot& snapshot);

}  // namespace terrace
