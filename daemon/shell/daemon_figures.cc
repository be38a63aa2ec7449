#include "daemon/shell/daemon_figures.h"

#include <utility>

#include "daemon/log/log.h"
#include "tiers/arena/bus_guard.h"

namespace terrace {
namespace {

std::vector<std::string> DomainNames(const DaemonConfig& config) {
  std::vector<std::string> names;
  for (const DomainConfig& domain : config.domains) names.push_back(domain.name);
  return names;
}

}  // namespace

DaemonFigures::DaemonFigures(const Sources& sources)
    : from_(sources),
      watch_(DomainNames(sources.config),
             {.fill = [this](uint32_t i, auto* to) { from_.store.statistics().Fill(i, to); },
              .kv_events = [this](uint32_t i) { return KvEventsOf(i); }}) {}

void DaemonFigures::FillProcess(ProcessSnapshot* process) const {
  *process = {.metrics = from_.metrics,
              .now_us = from_.clock.NowUs(),
              .dram_holder = std::string(from_.inheritance.holder()),
              .metrics_trouble = from_.endpoint == nullptr ? "" : from_.endpoint->Trouble(),
              .is_ready = from_.store.is_ready(),
              .log_lines_dropped = DroppedLogLines(),
              .unsent_bytes = from_.transport.unsent_bytes(),
              .arena_pages_lost = LostPageCount(),
              .checksum_jobs = from_.offload.jobs_taken(),
              .checksum_jobs_refused = from_.offload.jobs_refused(),
              .checksum_jobs_waiting = from_.offload.jobs_in_flight(),
              .sessions_waiting = from_.sessions.ready_count()};
}

std::optional<KvEventCounters> DaemonFigures::KvEventsOf(uint32_t domain_index) const {
  const bool is_told = from_.config.domains[domain_index].kv_events == KvEventsOfDomain::kOn;
  if (from_.kv_events == nullptr || !is_told) return std::nullopt;
  return from_.kv_events->counters();
}

uint32_t DaemonFigures::FillSome(Snapshot* snapshot, uint32_t first_domain) const {
  const auto domain_count = static_cast<uint32_t>(from_.config.domains.size());
  if (first_domain == 0) {
    FillProcess(&snapshot->process);
    snapshot->domains.resize(domain_count);
  }
  const uint32_t next = FillDomains(from_.store, first_domain, snapshot);
  for (uint32_t i = first_domain; i < (next == 0 ? domain_count : next); ++i) {
    snapshot->domains[i].name = from_.config.domains[i].name;
    snapshot->domains[i].kv_events = KvEventsOf(i);
  }
  return next;
}

void DaemonFigures::FillPageOf(uint32_t domain_index, PageSnapshot* page) const {
  FillProcess(&page->process);
  FillPage(from_.store, domain_index, page);
  page->kv_events = KvEventsOf(domain_index);
}

std::string DaemonFigures::StatsOf(uint32_t domain_index) const {
  ProcessSnapshot process;
  FillProcess(&process);
  return StatsDocument({.process = process,
                        .domain = from_.store.statistics().Of(domain_index),
                        .kv_events = KvEventsOf(domain_index)},
                       from_.sessions.Summaries(domain_index, kSessionsShownMax));
}

MetricsSource DaemonFigures::SourceOf(std::function<void(std::function<void()> work)> post) const {
  MetricsSource source;
  source.domain_names = DomainNames(from_.config);
  source.post = std::move(post);
  source.fill = [this](Snapshot* snapshot, uint32_t first) { return FillSome(snapshot, first); };
  source.fill_page = [this](uint32_t domain_index, PageSnapshot* page) {
    FillPageOf(domain_index, page);
  };
  source.is_ready = [this] { return from_.store.is_ready(); };
  source.health = [this] { return watch_.Summary(); };
  source.add_groups = [this](uint32_t domain_index, uint32_t first, auto* groups) {
    return from_.store.statistics().AddGroups(domain_index, first, PrefixSurvey::kGroupsPerTurn,
                                              groups);
  };
  source.walk = [this](uint32_t domain_index, uint64_t* cursor, auto* entries) {
    return from_.store.operators().ListAll(domain_index, cursor, entries);
  };
  return source;
}

}  // namespace terrace
