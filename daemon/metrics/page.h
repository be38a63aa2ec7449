// The page for people, and the documents it shows: a domain's status with its hits minute by
// minute, and its prefix tree.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/metrics/prefix_runs.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {

inline constexpr size_t kTreeRunsShownMax = 64;
inline constexpr size_t kTopPrefixesShownMax = 20;

// HTML of one piece: loads nothing but the documents below.
std::string_view PageText();

// {"domains": names, "minutes": [[asked, hit], …], "status": BriefStatsDocument}.
std::string StatusDocument(const std::vector<std::string>& domain_names, const PageSnapshot& page);

// {"block_count", "is_cut", "tree": [run, …], "top": [run, …]}; docs/METRICS.md has a run's fields.
std::string PrefixesDocument(const PrefixRuns& survey, bool is_cut,
                             std::span<const DomainStats::GroupStats> groups);

// What a hit of each group's blocks saves.
SavedUsByGroup SavedUsOf(std::span<const DomainStats::GroupStats> groups);

}  // namespace terrace
