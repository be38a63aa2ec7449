// The figures of one domain, by family: what it holds, what was asked of it, its tiers.
#pragma once

#include "daemon/metrics/families.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {

void AddDomain(const DomainSnapshot& domain, Families* all);
// Of its tiers below DRAM, those that hosts share, and devices.
void AddTiers(const DomainFigures& figures, const Families::Labels& labels, Families* all);

}  // namespace terrace
