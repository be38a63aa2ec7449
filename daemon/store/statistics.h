// What status and metrics tell of a domain: counters since the start, and sizes as they are now.
//
// THREADING: the store thread.
#pragma once

#include "daemon/block/domain_stats.h"

namespace terrace {

struct DomainRooms;
struct StoreRooms;

DomainStats StatsOf(const StoreRooms& store, const DomainRooms& rooms);

}  // namespace terrace
