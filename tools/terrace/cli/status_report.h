// What `terrace status` prints, from a Stats document.
#pragma once

#include <string>

#include "tools/terrace/cli/stats_view.h"

namespace terrace::tools {

std::string RenderStatus(const StatsView& stats);

}  // namespace terrace::tools
