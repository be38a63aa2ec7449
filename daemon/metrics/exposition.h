// Exposition: a Snapshot in Prometheus' text form. docs/METRICS.md says what each metric means.
// Groups of a domain that the Snapshot does not have, and what groups had counted that are gone,
// are told as one.
#pragma once

#include <string>

#include "daemon/telemetry/metrics.h"

namespace terrace {

// False: this program was built without the library that writes the form.
bool HasExposition();
// REQUIRES: HasExposition().
std::string Exposition(const Snapshot& snapshot);

}  // namespace terrace
