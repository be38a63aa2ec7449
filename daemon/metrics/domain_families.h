// The figures of one domain, by family: what it holds, what was asked of it, its tiers.
#pragma once

#include <cstddef>

#include "daemon/metrics/families.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {

void AddDomain(const DomainSnapshot& domain, size_t groups_max, Families* all);
// Of its tiers below DRAM, those that hosts share, and devices.
void AddTiers(const DomainStats& stats, const Families::Labels& labels, Families* all);

}  // namespace terrace
