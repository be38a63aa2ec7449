// Statistics: what status, metrics and the page tell of a domain.
//
// THREADING: the store thread. LIMITS: what Fill takes grows with neither blocks nor groups nor
// sessions, but for the clients of an HBM tier; the others say what theirs grows with.
// metrics_bench measures them, without an HBM tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/block/domain_stats.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

struct StoreRooms;

class Statistics {
 public:
  explicit Statistics(const StoreRooms& store) : store_(store) {}

  void Fill(uint32_t domain_index, DomainFigures* figures) const;
  // The first ones, by their places: a group keeps its place for as long as it is there. REQUIRES:
  // `shown` is filled for one domain alone.
  void FillShownGroups(uint32_t domain_index, size_t group_count_max, ShownGroups* shown) const;
  // Adds groups from `first` on, so many at most; where to go on, or 0: those were the last.
  uint32_t AddGroups(uint32_t domain_index, uint32_t first, uint32_t group_count_max,
                     std::vector<DomainStats::GroupStats>* groups) const;
  // Without the copies of sessions, and with the first groups alone.
  DomainStats Brief(uint32_t domain_index, uint32_t group_count_max) const;
  // All there is: grows with groups and, over all domains, sessions.
  DomainStats Of(uint32_t domain_index) const;
  // Of all domains: segments that have memory, and of those the ones on their way out.
  void CountSegments(uint32_t* held, uint32_t* leaving) const;
  // What Acquires asked for, in each of the last minutes, the one that runs last.
  std::vector<protocol::HitRateCounts> HitsByMinute(uint32_t domain_index) const;

 private:
  const StoreRooms& store_;
};

}  // namespace terrace
