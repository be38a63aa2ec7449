// What the daemon measures of itself: its process, and of each domain what the store says. Who
// shows it (the Stats document of a session, Prometheus, the page) is given the same figures: they
// are counted once, by the store thread, and copied as they are there.
//
// THREADING: counting and filling, the store thread; a snapshot that is filled, any one thread.
// LIMITS: of groups, a Snapshot has kGroupsShownMax, a PageSnapshot kGroupsOfPageMax.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/session/session.h"
#include "daemon/socket/acceptor.h"
#include "daemon/store/store.h"
#include "daemon/telemetry/turn_meter.h"

namespace terrace {

// No turn of the store thread should take longer.
inline constexpr uint64_t kTurnLimitUs = 200;
inline constexpr size_t kSessionsShownMax = 64;
// Groups in a Snapshot, over all domains, in equal shares of kGroupsOfDomainMin at least.
inline constexpr size_t kGroupsShownMax = 256;
inline constexpr size_t kGroupsOfDomainMin = 4;
inline constexpr uint32_t kGroupsOfPageMax = 64;
// Domains that are copied into a Snapshot in one turn (metrics_bench).
inline constexpr uint32_t kDomainsPerTurn = 16;

constexpr size_t GroupsShownOf(size_t domain_count) {
  return std::max(kGroupsOfDomainMin, kGroupsShownMax / std::max<size_t>(domain_count, 1));
}

// Counters since the start, of the shell's own.
struct ProcessMetrics {
  uint64_t boot_id = 0;
  uint64_t started_us = 0;
  uint64_t started_unix_s = 0;
  TurnTimes turns;
  uint64_t turn_count = 0;
  uint64_t turns_over_limit = 0;  // longer than kTurnLimitUs
  uint64_t turns_starved = 0;     // of these, those that ran for less: they waited for a processor
  TurnCost longest_turn;
  uint64_t connections_accepted = 0;
  std::array<uint64_t, kConnectionRefusalCount> connections_refused{};
  std::array<uint64_t, kCloseReasonCount> sessions_closed{};

  void CountTurn(const TurnCost& turn) {
    turns.Add(turn.took_us);
    ++turn_count;
    if (turn.took_us > kTurnLimitUs) {
      ++turns_over_limit;
      if (turn.took_us - turn.waited_us <= kTurnLimitUs) ++turns_starved;
    }
    if (turn.took_us > longest_turn.took_us) longest_turn = turn;
  }
};

// With what others in the process have counted, at one time.
struct ProcessSnapshot {
  ProcessMetrics metrics;
  uint64_t now_us = 0;
  std::string dram_holder;      // of what a successor will find
  std::string metrics_trouble;  // MetricsEndpoint::Trouble
  bool is_ready = false;
  uint64_t log_lines_dropped = 0;
  uint64_t unsent_bytes = 0;
  uint64_t arena_pages_lost = 0;  // see tiers/arena/bus_guard.h
  uint64_t checksum_jobs = 0;
  uint64_t checksum_jobs_refused = 0;  // the queue was full
  uint64_t checksum_jobs_waiting = 0;
  uint64_t sessions_waiting = 0;  // for their next turn
};

struct DomainSnapshot {
  std::string name;
  DomainFigures figures;
  ShownGroups groups;
  std::optional<KvEventCounters> kv_events;  // if routers hear of the domain's blocks
};

// For Prometheus. Filled again and again, so that what did not change is not copied again.
struct Snapshot {
  ProcessSnapshot process;
  std::vector<DomainSnapshot> domains;
};

// A turn's worth of what stores say: kDomainsPerTurn domains from `first_domain` on. Where to go
// on; 0: all is there. REQUIRES: snapshot->domains has one a domain of the store.
uint32_t FillDomains(const Store& store, uint32_t first_domain, Snapshot* snapshot);

// One domain, for the page.
struct PageSnapshot {
  ProcessSnapshot process;
  DomainStats domain;  // Statistics::Brief
  std::optional<KvEventCounters> kv_events;
  std::vector<protocol::HitRateCounts> minutes;  // the last ones of its hits, one by one
};
void FillPage(const Store& store, uint32_t domain_index, PageSnapshot* page);

struct StatsInput {
  const ProcessSnapshot& process;
  const DomainStats& domain;
  const std::optional<KvEventCounters>& kv_events;
};
// The Stats document. Only what the domain may know: nothing of other domains.
// docs/OPERATIONS.md names the fields.
std::string StatsDocument(const StatsInput& input, const std::vector<SessionSummary>& sessions);
// The same without sessions and their copies, of the groups that are given.
std::string BriefStatsDocument(const StatsInput& input);

}  // namespace terrace
