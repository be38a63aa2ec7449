// What the daemon measures of itself, and the Stats document: the store's counters of one domain,
// its sessions, and the process. docs/OPERATIONS.md names the fields.
//
// THREADING: store thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/session/session.h"
#include "daemon/store/store.h"

namespace terrace {

// No turn of the store thread should take longer.
inline constexpr uint64_t kTurnLimitUs = 200;
inline constexpr size_t kSessionsShownMax = 64;

struct ProcessMetrics {
  uint64_t boot_id = 0;
  uint64_t started_us = 0;
  uint64_t turns = 0;
  uint64_t turns_over_limit = 0;  // longer than kTurnLimitUs
  uint64_t turn_us_max = 0;
  uint64_t connections_accepted = 0;
  uint64_t connections_refused = 0;
  uint64_t checksum_jobs = 0;
  uint64_t checksum_jobs_refused = 0;  // the queue was full

  void CountTurn(uint64_t turn_us) {
    ++turns;
    if (turn_us > kTurnLimitUs) ++turns_over_limit;
    if (turn_us > turn_us_max) turn_us_max = turn_us;
  }
};

struct StatsInput {
  const ProcessMetrics& process;
  const DomainStats& domain;
  std::string dram_holder;  // of what a successor will find
  std::vector<SessionSummary> sessions;
  uint64_t now_us = 0;
  uint64_t log_lines_dropped = 0;
  uint64_t unsent_bytes = 0;
  uint64_t arena_pages_lost = 0;             // see tiers/arena/bus_guard.h
  std::optional<KvEventCounters> kv_events;  // if routers hear of the domain's blocks
};
// Only what the domain may know: nothing of other domains.
std::string StatsDocument(const StatsInput& input);

}  // namespace terrace
