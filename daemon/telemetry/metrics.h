// What the daemon measures of itself: its process, and of each domain what the store says. Who
// shows it (the Stats document of a session, Prometheus, the page) is given the same figures: they
// are counted once, by the store thread, and copied as a whole.
//
// THREADING: counting and filling, the store thread; a Snapshot that is filled, any one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/session/session.h"
#include "daemon/socket/acceptor.h"
#include "daemon/store/store.h"

namespace terrace {

// No turn of the store thread should take longer.
inline constexpr uint64_t kTurnLimitUs = 200;
inline constexpr size_t kSessionsShownMax = 64;

// Counters since the start, of the shell's own.
struct ProcessMetrics {
  uint64_t boot_id = 0;
  uint64_t started_us = 0;
  uint64_t started_unix_s = 0;
  TurnTimes turns;
  uint64_t turn_count = 0;
  uint64_t turns_over_limit = 0;  // longer than kTurnLimitUs
  uint64_t turn_us_max = 0;
  uint64_t connections_accepted = 0;
  std::array<uint64_t, kConnectionRefusalCount> connections_refused{};
  std::array<uint64_t, kCloseReasonCount> sessions_closed{};

  void CountTurn(uint64_t turn_us) {
    turns.Add(turn_us);
    ++turn_count;
    if (turn_us > kTurnLimitUs) ++turns_over_limit;
    if (turn_us > turn_us_max) turn_us_max = turn_us;
  }
};

// With what others in the process have counted, at one time.
struct ProcessSnapshot {
  ProcessMetrics metrics;
  uint64_t now_us = 0;
  std::string dram_holder;  // of what a successor will find
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
  DomainStats stats;
  std::optional<KvEventCounters> kv_events;      // if routers hear of the domain's blocks
  std::vector<protocol::HitRateCounts> minutes;  // the last ones of its hits, one by one
};

struct Snapshot {
  ProcessSnapshot process;
  std::vector<DomainSnapshot> domains;
};

// What a domain's store says; some tens of microseconds at the documented limits (metrics_bench).
void FillDomain(const Store& store, uint32_t domain_index, DomainSnapshot* domain);

struct StatsInput {
  const ProcessSnapshot& process;
  const DomainStats& domain;
  const std::optional<KvEventCounters>& kv_events;
  std::vector<SessionSummary> sessions;
};
// The Stats document. Only what the domain may know: nothing of other domains.
// docs/OPERATIONS.md names the fields.
std::string StatsDocument(const StatsInput& input);

}  // namespace terrace
