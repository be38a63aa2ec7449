#include "daemon/metrics/exposition.h"

#include "daemon/metrics/domain_families.h"
#include "daemon/metrics/families.h"
#include "daemon/telemetry/names.h"

namespace terrace {
namespace {

constexpr double kUsPerS = 1e6;

double Of(uint64_t value) { return static_cast<double>(value); }

void AddProcess(const ProcessSnapshot& process, Families* all) {
  const ProcessMetrics& metrics = process.metrics;
  all->Gauge({"terrace_build_info", "What runs; the value is 1."},
             {{"version", TERRACE_VERSION}, {"compiler", TERRACE_COMPILER}}, 1);
  all->Gauge({"terrace_start_time_seconds", "When the daemon started, since 1970."}, {},
             Of(metrics.started_unix_s));
  all->Gauge({"terrace_ready", "1 once every domain has memory and can be asked."}, {},
             process.is_ready ? 1 : 0);
  all->Gauge({"terrace_dram_holder_info", "Who holds the arenas for a successor; the value is 1."},
             {{"holder", process.dram_holder}}, 1);
  all->Histogram({"terrace_turn_seconds", "Turns of the store thread."}, {}, metrics.turns.view(),
                 kUsPerS);
  all->Counter({"terrace_turns_over_limit_total", "Turns longer than 200 microseconds."}, {},
               Of(metrics.turns_over_limit));
  all->Counter({"terrace_turns_starved_total",
                "Turns longer than 200 microseconds that ran for less, and else waited for a "
                "processor or a page."},
               {}, Of(metrics.turns_starved));
  all->Counter({"terrace_connections_accepted_total", "Connections that became sessions or may."},
               {}, Of(metrics.connections_accepted));
  for (size_t i = 0; i < kConnectionRefusalCount; ++i) {
    all->Counter({"terrace_connections_refused_total", "Connections turned away before Hello."},
                 {{"reason", std::string(kConnectionRefusalNames[i])}},
                 Of(metrics.connections_refused[i]));
  }
  for (size_t i = 0; i < kCloseReasonCount; ++i) {
    all->Counter({"terrace_sessions_closed_total", "Connections that ended, by reason."},
                 {{"reason", std::string(kCloseReasonNames[i])}}, Of(metrics.sessions_closed[i]));
  }
  all->Gauge({"terrace_sessions_waiting", "Sessions whose request waits for its next turn."}, {},
             Of(process.sessions_waiting));
  all->Counter({"terrace_checksum_jobs_total", "Jobs given to the checksum threads."}, {},
               Of(process.checksum_jobs));
  all->Counter({"terrace_checksum_jobs_refused_total", "Jobs the full queue did not take."}, {},
               Of(process.checksum_jobs_refused));
  all->Gauge({"terrace_checksum_jobs_waiting", "Jobs with the checksum threads."}, {},
             Of(process.checksum_jobs_waiting));
  all->Counter({"terrace_log_lines_dropped_total", "Log lines dropped for a slow reader."}, {},
               Of(process.log_lines_dropped));
  all->Gauge({"terrace_unsent_bytes", "Replies that clients have not read yet."}, {},
             Of(process.unsent_bytes));
  all->Counter({"terrace_arena_pages_lost_total", "Pages of arenas that could not be read."}, {},
               Of(process.arena_pages_lost));
}

}  // namespace

bool HasExposition() { return true; }

std::string Exposition(const Snapshot& snapshot) {
  Families all;
  AddProcess(snapshot.process, &all);
  for (const DomainSnapshot& domain : snapshot.domains) AddDomain(domain, &all);
  return all.Text();
}

}  // namespace terrace
