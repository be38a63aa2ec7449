// Built where prometheus-cpp is not installed.
#include "daemon/metrics/exposition.h"
#include "terrace/check.h"

namespace terrace {

bool HasExposition() { return false; }

std::string Exposition(const Snapshot&) {
  TERRACE_CHECK(false, "nobody asks for what there is not");
  return {};
}

}  // namespace terrace
