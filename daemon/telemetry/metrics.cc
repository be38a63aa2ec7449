#include "daemon/telemetry/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "daemon/log/json_text.h"
#include "daemon/log/log.h"
#include "daemon/telemetry/conditions.h"
#include "daemon/telemetry/names.h"
#include "terrace/check.h"

namespace terrace {
namespace {

using nlohmann::json;

// Counts by kind, under the kinds' names.
template <typename Counts, typename Names>
json ByName(const Counts& counts, const Names& names) {
  json document = json::object();
  for (size_t i = 0; i < names.size(); ++i) document[std::string(names[i])] = counts[i];
  return document;
}

// At least this share of the values are not above the bound; 0: there are none, or they are above
// all bounds.
uint64_t QuantileBound(const HistogramView& view, uint64_t value_count, uint64_t percent) {
  uint64_t count = 0;
  for (size_t i = 0; value_count > 0 && i < view.bound_count(); ++i) {
    count += view.counts[i];
    if (count * 100 >= value_count * percent) return view.bound_of(i);
  }
  return 0;
}

json HistogramDocument(const HistogramView& view) {
  uint64_t count = 0;
  for (const uint64_t in_bucket : view.counts) count += in_bucket;
  return {{"count", count},
          {"sum", view.sum},
          {"p50", QuantileBound(view, count, 50)},
          {"p99", QuantileBound(view, count, 99)}};
}

template <typename Histograms, typename Names>
json HistogramsByName(const Histograms& histograms, const Names& names) {
  json document = json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    document[std::string(names[i])] = HistogramDocument(histograms[i].view());
  }
  return document;
}

// Keys that Reserve did not give a slot.
void AddRefusals(const DomainStats& domain, json* document) {
  (*document)["reserve_exists"] = domain.reserve_exists;
  (*document)["reserve_busy"] = domain.reserve_busy;
  (*document)["reserve_no_space"] = domain.reserve_no_space;
  (*document)["reserve_passed_by"] = domain.reserve_passed_by;
}

void AddScrub(const DomainStats& domain, json* document) {
  (*document)["scrub_members"] = domain.scrub_members;
  (*document)["scrub_bytes"] = domain.scrub_bytes;
  (*document)["scrub_passes"] = domain.scrub_passes;
  (*document)["scrub_mismatches"] = domain.scrub_mismatches;
  const bool is_never = domain.scrub_rest_us == UINT64_MAX;
  (*document)["scrub_rest_s"] = is_never ? json() : json(domain.scrub_rest_us / kUsPerSecond);
}

json DomainDocument(const DomainStats& domain) {
  json document = {
      {"name", domain.name},
      {"eviction", domain.eviction_policy},
      {"segment_bytes", domain.segment_bytes},
      {"arena_page_bytes", domain.arena_page_bytes},
      {"segments_populated", domain.segments_populated},
      {"segments_max", domain.segments_max},
      {"dram_capacity_bytes", domain.dram_capacity_bytes},
      {"segments_guaranteed", domain.segments_guaranteed},
      {"segments_borrowed", domain.segments_borrowed},
      {"segments_leaving", domain.segments_leaving},
      {"slot_bytes_used", domain.slot_bytes_used},
      {"slot_bytes_stranded", domain.slot_bytes_stranded},
      {"fenced_bytes", domain.fenced_bytes},
      {"fenced_bytes_max", domain.fenced_bytes_max},
      {"inherited_bytes", domain.inherited_bytes},
      {"fenced_slot_count", domain.fenced_slot_count},
      {"session_count", domain.session_count},
      {"group_count", domain.group_count},
      {"lease_count", domain.lease_count},
      {"block_count", domain.block_count},
      {"reserved_count", domain.reserved_count},
      {"leased_block_count", domain.pinned_count},
      {"pinned_count", domain.pinned_count},  // what it was called before
      {"engine_pinned_blocks", domain.engine_pinned_blocks},
      {"engine_pinned_bytes", domain.engine_pinned_bytes},
      {"named_pinned_blocks", domain.named_pinned_blocks},
      {"named_pinned_bytes", domain.named_pinned_bytes},
      {"pin_hints_dropped", domain.pin_hints_dropped},
      {"match_requests", domain.match_requests},
      {"match_blocks_asked", domain.match_blocks_asked},
      {"match_blocks_hit", domain.match_blocks_hit},
      {"acquire_requests", domain.hits.requests},
      {"acquire_blocks_asked", domain.hits.blocks_asked},
      {"acquire_blocks_hit", domain.acquire_blocks_hit()},
      {"acquire_blocks_lost", domain.acquire_blocks_lost},
      {"acquire_blocks_by_tier", domain.hits.blocks_hit},
      {"acquire_blocks_missed", ByName(domain.hits.blocks_missed, kMissCauseNames)},
      {"acquire_tokens_asked", domain.acquire_tokens_asked},
      {"acquire_tokens_by_tier", domain.acquire_tokens_by_tier},
      {"acquire_bytes_by_tier", domain.acquire_bytes_by_tier},
      {"prefill_saved_us", domain.hits.saved_us},
      {"blocks_adopted", domain.blocks_adopted},
      {"blocks_sealed", domain.blocks_sealed},
      {"sealed_bytes", domain.sealed_bytes},
      {"blocks_evicted", domain.blocks_evicted},
      {"blocks_expired", domain.blocks_expired},
      {"parts_refused", domain.parts_refused},
      {"blocks_corrupt", domain.blocks_corrupt},
      {"blocks_refuted", domain.blocks_refuted},
      {"reads_repeated", domain.reads_repeated},
      {"reads_recovered", domain.reads_recovered},
      {"commits_gone", domain.commits_gone},
      {"leases_revoked", domain.leases_revoked},
      {"checksums_verified", domain.checksums_verified},
      {"blocks_relocated", domain.blocks_relocated},
      {"promotions", domain.promotions},
      {"promotions_failed", domain.promotions_failed},
      {"promotions_cancelled", domain.promotions_cancelled},
      {"read_ahead_blocks", domain.read_ahead_blocks},
      {"read_ahead_used", domain.read_ahead_used},
      {"demotions", domain.demotions},
      {"demotions_failed", domain.demotions_failed},
  };
  AddRefusals(domain, &document);
  AddScrub(domain, &document);
  return document;
}

// Microseconds, and bytes of reuse distances.
json TimesDocument(const DomainStats& domain) {
  return {{"requests", HistogramsByName(domain.request_us, kTimedVerbNames)},
          {"promotions", HistogramsByName(domain.promotion_us, kTierNames)},
          {"residence", HistogramDocument(domain.residence_us.view())},
          {"dram_idle", HistogramDocument(domain.dram_idle_us.view())},
          {"reuse_distances", HistogramDocument(domain.reuse_distances.view())}};
}

// Sessions whose checksums were wrong, the last one last.
json RefutedDocument(const DomainStats& domain) {
  json writers = json::array();
  for (const RefutedWriter& writer : domain.refuted_writers) {
    writers.push_back({{"session", SessionText(writer.session)},
                       {"uid", writer.uid},
                       {"pid", writer.pid},
                       {"client_name", writer.client_name},
                       {"comm", writer.comm},
                       {"unix_s", writer.unix_s},
                       {"block_count", writer.block_count}});
  }
  return writers;
}

// What a person should do about the domain; empty: nothing.
void AddTroubles(const StatsInput& input, json* document) {
  json troubles = json::array(), conditions = json::array();
  for (const Trouble& trouble : TroublesOf(input.domain, input.kv_events)) {
    troubles.push_back(trouble.sentence);
    conditions.push_back(NameOf(trouble.condition));
  }
  (*document)["health"] = troubles.empty() ? "ok" : "degraded";
  (*document)["troubles"] = std::move(troubles);
  (*document)["conditions"] = std::move(conditions);
}

json TierDocument(const DomainStats& domain, const DomainStats::LowerTierStats& tier) {
  const uint64_t budget_bytes = domain.write_bytes_per_day;
  const bool is_device = tier.kind == protocol::TierKind::kHbm;
  return {{"kind", kTierNames[static_cast<size_t>(tier.kind)]},
          {"eviction", is_device ? "lru" : domain.lower_eviction_policy},
          {"admission", is_device ? "hits" : domain.admission_policy},
          {"write_bytes_per_day",
           is_device || budget_bytes == UINT64_MAX ? json() : json(budget_bytes)},
          {"written_bytes_of_day", tier.written_bytes_of_day},
          {"block_count", tier.block_count},
          {"persisted_block_count", tier.persisted_block_count},
          {"capacity_bytes", tier.stats.capacity_bytes},
          {"used_bytes", tier.stats.used_bytes},
          {"held_bytes", tier.stats.share.held_bytes},
          {"leaving_bytes", tier.stats.share.leaving_bytes},
          {"above_bytes", tier.stats.share.above_bytes},
          {"transfers_in_flight", tier.stats.transfers_in_flight},
          {"reads_queued", tier.reads_queued},
          {"writes_queued", tier.writes_queued},
          {"read_bytes", tier.stats.read_bytes},
          {"written_bytes", tier.stats.written_bytes},
          {"failed_transfers", tier.stats.failed_transfers},
          {"suspect_bytes", tier.stats.suspect_bytes},
          {"quarantined_bytes", tier.stats.quarantined_bytes},
          {"too_large_bytes", tier.stats.too_large_bytes},
          {"catalog_memory_bytes", tier.stats.catalog_memory_bytes},
          {"catalog_trouble", tier.stats.catalog_trouble},
          {"left_alone_bytes", tier.stats.left_alone_bytes},
          {"places_recovered", tier.stats.places_recovered},
          {"is_degraded", IsCapacityLost(tier.stats)},
          {"is_healthy", tier.stats.is_healthy}};
}

json SharedDocument(const DomainStats::SharedStats& shared) {
  const SharedTierStats& tier = shared.tier;
  return {{"is_ready", tier.is_ready},
          {"is_refused", tier.is_refused},
          {"is_tls_refused", tier.is_tls_refused},
          {"is_of_another_kind", tier.is_of_another_kind},
          {"tls_trouble", tier.tls_trouble},
          {"trouble", tier.trouble},
          {"write_trouble", tier.write_trouble},
          {"part_trouble", tier.part_trouble},
          {"connections", tier.connections},
          {"connection_attempts", tier.connection_attempts},
          {"connections_lost", tier.connections_lost},
          {"breaker_opened", tier.breaker_opened},
          {"forgets", tier.forgets},
          {"forgets_owed", tier.forgets_owed},
          {"erasures_owed", tier.erasures_owed},
          {"generations_lost", tier.generations_lost},
          {"forgotten_elsewhere", tier.forgotten_elsewhere},
          {"operations_in_flight", tier.operations_in_flight},
          {"bytes_in_flight", tier.bytes_in_flight},
          {"read_bytes", tier.read_bytes},
          {"written_bytes", tier.written_bytes},
          {"fetches_found", tier.fetches_found},
          {"fetches_missed", tier.fetches_missed},
          {"fetches_broken", tier.fetches_broken},
          {"fetches_failed", tier.fetches_failed},
          {"stores_done", tier.stores_done},
          {"stores_existing", tier.stores_existing},
          {"stores_failed", tier.stores_failed},
          {"probes", tier.probes},
          {"probes_remembered", tier.probes_remembered},
          {"repairs", tier.repairs},
          {"queued_blocks", shared.queued_blocks},
          {"queued_bytes", shared.queued_bytes},
          {"queue_bytes_max", shared.queue_bytes_max},
          {"stores_under_way", shared.stores_under_way},
          {"blocks_stored", shared.blocks_stored},
          {"blocks_existing", shared.blocks_existing},
          {"blocks_failed", shared.blocks_failed},
          {"blocks_dropped", shared.blocks_dropped},
          {"blocks_outdated", shared.blocks_outdated},
          {"blocks_unnamed", shared.blocks_unnamed},
          {"blocks_over_quota", shared.blocks_over_quota},
          {"seeks", shared.seeks},
          {"seeks_joined", shared.seeks_joined},
          {"seeks_late", shared.seeks_late},
          {"blocks_found", shared.blocks_found},
          {"blocks_fetched", shared.blocks_fetched},
          {"blocks_missed", shared.blocks_missed},
          {"blocks_cancelled", shared.blocks_cancelled},
          {"blocks_not_worth", shared.blocks_not_worth}};
}

json DeviceDocument(const DomainStats::DeviceStats& device) {
  const HbmTier::OrderStats& orders = device.orders;
  return {{"device", device.device},
          {"backend", device.device.substr(0, device.device.find(':'))},
          {"why", device.why},
          {"clients", orders.executors},
          {"blocks_served", device.blocks_served},
          {"orders_queued", orders.queued},
          {"orders_late", orders.late},
          {"orders_issued", orders.issued},
          {"orders_reissued", orders.reissued},
          {"orders_refused", orders.refused},
          {"orders_wrong", orders.wrong},
          {"orders_expired", orders.expired}};
}

json CopiesDocument(const DomainStats::CopyStats& copies) {
  json clients = json::array();
  for (const DomainStats::CopyClient& client : copies.clients) {
    clients.push_back({{"session", SessionText(client.session)},
                       {"backend", client.backend},
                       {"why", client.why},
                       {"pinned_bytes", client.counts.pinned_bytes},
                       {"pinned_bytes_max", client.counts.pinned_bytes_max},
                       {"straight_bytes", client.counts.straight_bytes},
                       {"bounced_bytes", client.counts.bounced_bytes},
                       {"registrations_failed", client.counts.failed_count}});
  }
  return {{"client_count", copies.client_count},
          {"pinned_bytes", copies.pinned_bytes},
          {"straight_bytes", copies.straight_bytes},
          {"bounced_bytes", copies.bounced_bytes},
          {"registrations_failed", copies.registrations_failed},
          {"clients", std::move(clients)}};
}

json SessionDocument(const SessionSummary& session) {
  return {{"id", SessionText(session.id)},
          {"client_name", session.client_name},
          {"pid", session.peer.pid},
          {"uid", session.peer.uid},
          {"group_count", session.group_count},
          {"pending_count", session.pending_count},
          {"segments_owed", session.segments_owed},
          {"revoked_leases", session.revoked_leases},
          {"is_reader", session.is_reader},
          {"is_hung_up", session.is_hung_up}};
}

json ProcessDocument(const ProcessSnapshot& process) {
  const ProcessMetrics& metrics = process.metrics;
  uint64_t refused_count = 0;
  for (const uint64_t count : metrics.connections_refused) refused_count += count;
  return {{"version", TERRACE_VERSION},
          {"pid", getpid()},
          {"boot_id", ToHex(0, metrics.boot_id).substr(16)},
          {"uptime_ms", (process.now_us - metrics.started_us) / kUsPerMs},
          {"turns", metrics.turn_count},
          {"turns_over_limit", metrics.turns_over_limit},
          {"turns_starved", metrics.turns_starved},
          {"turn_us_max", metrics.longest_turn.took_us},
          {"turn_us_max_waited", metrics.longest_turn.waited_us},
          {"turn_us_limit", kTurnLimitUs},
          {"turn_times", HistogramDocument(metrics.turns.view())},
          {"connections_accepted", metrics.connections_accepted},
          {"connections_refused", refused_count},
          {"connections_refused_by", ByName(metrics.connections_refused, kConnectionRefusalNames)},
          {"sessions_closed", ByName(metrics.sessions_closed, kCloseReasonNames)},
          {"sessions_waiting", process.sessions_waiting},
          {"checksum_jobs", process.checksum_jobs},
          {"checksum_jobs_refused", process.checksum_jobs_refused},
          {"checksum_jobs_waiting", process.checksum_jobs_waiting},
          {"log_lines_dropped", process.log_lines_dropped},
          {"dram_holder", process.dram_holder},
          {"metrics_trouble", process.metrics_trouble},
          {"unsent_bytes", process.unsent_bytes},
          {"arena_pages_lost", process.arena_pages_lost}};
}

json DocumentOf(const StatsInput& input) {
  json document = ProcessDocument(input.process);
  document["domain"] = DomainDocument(input.domain);
  document["domain"]["serving"] = kServingModeNames[static_cast<size_t>(input.domain.serving)];
  document["domain"]["requests_unserved"] = input.domain.requests_unserved;
  document["domain"]["sessions_refused"] =
      ByName(input.domain.sessions_refused, kSessionRefusalNames);
  document["domain"]["times"] = TimesDocument(input.domain);
  document["domain"]["refuted_writers"] = RefutedDocument(input.domain);
  AddTroubles(input, &document);
  if (const std::optional<KvEventCounters>& events = input.kv_events) {
    document["kv_events"] = {{"is_on", events->is_on},
                             {"events", events->events},
                             {"messages", events->messages},
                             {"lost", events->lost},
                             {"untold_groups", events->untold_groups},
                             {"errors", events->errors},
                             {"peers_ended", events->peers_ended},
                             {"replays", events->replays},
                             {"replays_refused", events->replays_refused},
                             {"replays_abandoned", events->replays_abandoned},
                             {"republications", events->republications}};
  }
  document["lower_tiers"] = json::array();
  for (const auto& tier : input.domain.lower_tiers) {
    document["lower_tiers"].push_back(TierDocument(input.domain, tier));
  }
  // null: no tier is shared with other hosts
  document["redis"] = input.domain.shared ? SharedDocument(*input.domain.shared) : json();
  // null: there is no HBM tier
  document["hbm"] = input.domain.device ? DeviceDocument(*input.domain.device) : json();
  return document;
}

// A group as text, for a domain may have thousands: values of a JSON library cost ten times that.
void AppendGroup(const DomainStats::GroupStats& group, std::string* text) {
  const auto add = [text](std::string_view name, uint64_t number) {
    *text += ",\"";
    *text += name;
    *text += "\":";
    *text += std::to_string(number);
  };
  *text += "{\"name\":" + JsonText(group.name);
  *text += ",\"id\":\"" + ToHex(group.id) + '"';
  add("member_count", group.member_count);
  add("block_tokens", group.block_tokens);
  add("block_count", group.block_count);
  add("block_bytes", group.block_bytes);
  add("recompute_ns_per_token", group.recompute_ns_per_token);
  add("acquire_blocks_asked", group.hits.blocks_asked);
  add("acquire_blocks_hit", DomainStats::BlocksHit(group.hits));
  *text += ",\"acquire_blocks_by_tier\":";
  char before = '[';
  for (const uint64_t count : group.hits.blocks_hit) {
    *text += std::exchange(before, ',') + std::to_string(count);
  }
  *text += ']';
  add("prefill_saved_us", group.hits.saved_us);
  *text += '}';
}

std::string WithGroups(std::string document, std::span<const DomainStats::GroupStats> groups) {
  TERRACE_CHECK(document.size() > 2 && document.back() == '}', "an object that has members");
  document.back() = ',';
  document += "\"groups\":[";
  for (size_t g = 0; g < groups.size(); ++g) {
    if (g > 0) document += ',';
    AppendGroup(groups[g], &document);
  }
  return document += "]}";
}

}  // namespace

uint32_t FillDomains(const Store& store, uint32_t first_domain, Snapshot* snapshot) {
  const auto domain_count = static_cast<uint32_t>(snapshot->domains.size());
  TERRACE_CHECK(first_domain == 0 || first_domain < domain_count, "it goes on where it said");
  const uint32_t end = std::min(first_domain + kDomainsPerTurn, domain_count);
  const Statistics& statistics = store.statistics();
  for (uint32_t i = first_domain; i < end; ++i) {
    statistics.Fill(i, &snapshot->domains[i].figures);
    statistics.FillShownGroups(i, GroupsShownOf(domain_count), &snapshot->domains[i].groups);
  }
  return end < domain_count ? end : 0;
}

void FillPage(const Store& store, uint32_t domain_index, PageSnapshot* page) {
  page->domain = store.statistics().Brief(domain_index, kGroupsOfPageMax);
  page->minutes = store.statistics().HitsByMinute(domain_index);
}

std::string StatsDocument(const StatsInput& input, const std::vector<SessionSummary>& sessions) {
  json document = DocumentOf(input);
  document["copies"] = CopiesDocument(input.domain.copies);
  document["sessions"] = json::array();
  for (const SessionSummary& session : sessions) {
    document["sessions"].push_back(SessionDocument(session));
  }
  return WithGroups(JsonText(document), input.domain.groups);
}

std::string BriefStatsDocument(const StatsInput& input) {
  return WithGroups(JsonText(DocumentOf(input)), input.domain.groups);
}

}  // namespace terrace
