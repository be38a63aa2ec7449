#include "daemon/metrics/domain_families.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "daemon/telemetry/conditions.h"
#include "daemon/telemetry/names.h"

namespace terrace {
namespace {

constexpr double kUsPerS = 1e6;
constexpr char kGroupOther[] = "\u2026other";  // groups' names are ASCII: none is called so
constexpr auto kDram = static_cast<size_t>(protocol::TierKind::kDram);

double Of(uint64_t value) { return static_cast<double>(value); }

enum class Form { kCounter, kGauge };

struct DomainMetric {
  Form form;
  FamilyText text;
  uint64_t (*value)(const DomainFigures& figures);
};

// What is one number a domain.
constexpr DomainMetric kDomainMetrics[] = {
    {Form::kGauge,
     {"terrace_sessions", "Sessions that are open."},
     [](const DomainFigures& s) -> uint64_t { return s.session_count; }},
    {Form::kGauge,
     {"terrace_serving_mode", "0: serving, 1: draining, 2: bypassed."},
     [](const DomainFigures& s) { return static_cast<uint64_t>(s.serving); }},
    {Form::kCounter,
     {"terrace_unserved_requests_total", "Requests answered while drained or bypassed."},
     [](const DomainFigures& s) { return s.requests_unserved; }},
    {Form::kCounter,
     {"terrace_pin_hints_dropped_total", "Requests whose pin without an end was left out."},
     [](const DomainFigures& s) { return s.pin_hints_dropped; }},
    {Form::kGauge,
     {"terrace_groups", "SpaceGroups that are known."},
     [](const DomainFigures& s) -> uint64_t { return s.group_count; }},
    {Form::kGauge,
     {"terrace_leases", "Leases that are held."},
     [](const DomainFigures& s) -> uint64_t { return s.lease_count; }},
    {Form::kGauge,
     {"terrace_leased_blocks", "Blocks that leases hold."},
     [](const DomainFigures& s) { return s.pinned_count; }},
    {Form::kGauge,
     {"terrace_blocks", "Blocks that are known, in any tier."},
     [](const DomainFigures& s) { return s.block_count; }},
    {Form::kGauge,
     {"terrace_reserved_blocks", "Of those, blocks being written."},
     [](const DomainFigures& s) { return s.reserved_count; }},
    {Form::kGauge,
     {"terrace_arena_page_bytes", "Of the system's pages that memory is of."},
     [](const DomainFigures& s) { return s.arena_page_bytes; }},
    {Form::kGauge,
     {"terrace_segment_bytes", "The unit in which memory is populated."},
     [](const DomainFigures& s) { return s.segment_bytes; }},
    {Form::kGauge,
     {"terrace_stranded_bytes", "Populated memory in no slot, or in free slots of another size."},
     [](const DomainFigures& s) { return s.slot_bytes_stranded; }},
    {Form::kGauge,
     {"terrace_fenced_bytes", "Slots whose client is gone and not proven dead."},
     [](const DomainFigures& s) { return s.fenced_bytes; }},
    {Form::kGauge,
     {"terrace_engine_pinned_bytes", "Blocks that clients have pinned by themselves."},
     [](const DomainFigures& s) { return s.engine_pinned_bytes; }},
    {Form::kGauge,
     {"terrace_named_pinned_bytes", "Blocks that pins with a name keep."},
     [](const DomainFigures& s) { return s.named_pinned_bytes; }},
    {Form::kGauge,
     {"terrace_fenced_bytes_max", "With inherited bytes; from there on nothing is stored."},
     [](const DomainFigures& s) { return s.fenced_bytes_max; }},
    {Form::kGauge,
     {"terrace_inherited_bytes", "Slots of no block that clients of the daemon before may touch."},
     [](const DomainFigures& s) { return s.inherited_bytes; }},
    {Form::kCounter,
     {"terrace_match_requests_total", "Match requests."},
     [](const DomainFigures& s) { return s.match_requests; }},
    {Form::kCounter,
     {"terrace_match_blocks_asked_total", "Blocks asked for by Match."},
     [](const DomainFigures& s) { return s.match_blocks_asked; }},
    {Form::kCounter,
     {"terrace_match_blocks_hit_total", "Blocks found by Match."},
     [](const DomainFigures& s) { return s.match_blocks_hit; }},
    {Form::kCounter,
     {"terrace_acquire_requests_total", "Acquire requests that were answered."},
     [](const DomainFigures& s) { return s.hits.requests; }},
    {Form::kCounter,
     {"terrace_acquire_blocks_asked_total", "Blocks asked for by Acquire."},
     [](const DomainFigures& s) { return s.hits.blocks_asked; }},
    {Form::kCounter,
     {"terrace_acquire_tokens_asked_total", "Tokens of the blocks asked for by Acquire."},
     [](const DomainFigures& s) { return s.acquire_tokens_asked; }},
    {Form::kCounter,
     {"terrace_acquire_blocks_lost_total", "Blocks promised from below that did not come."},
     [](const DomainFigures& s) { return s.acquire_blocks_lost; }},
    {Form::kCounter,
     {"terrace_sealed_blocks_total", "Blocks that were stored and became visible."},
     [](const DomainFigures& s) { return s.blocks_sealed; }},
    {Form::kCounter,
     {"terrace_sealed_bytes_total", "Bytes of those blocks."},
     [](const DomainFigures& s) { return s.sealed_bytes; }},
    {Form::kCounter,
     {"terrace_evicted_blocks_total", "Blocks whose last copy was dropped."},
     [](const DomainFigures& s) { return s.blocks_evicted; }},
    {Form::kCounter,
     {"terrace_expired_blocks_total", "Blocks past their time to live."},
     [](const DomainFigures& s) { return s.blocks_expired; }},
    {Form::kCounter,
     {"terrace_adopted_blocks_total", "Blocks of the daemon before, found in DRAM."},
     [](const DomainFigures& s) { return s.blocks_adopted; }},
    {Form::kCounter,
     {"terrace_corrupt_blocks_total", "Blocks whose bytes were not those that were stored."},
     [](const DomainFigures& s) { return s.blocks_corrupt; }},
    {Form::kCounter,
     {"terrace_refuted_blocks_total", "Of those, blocks not as their writer's checksums say."},
     [](const DomainFigures& s) { return s.blocks_refuted; }},
    {Form::kCounter,
     {"terrace_parts_refused_total", "Parts that clients could not store under a lossy codec."},
     [](const DomainFigures& s) { return s.parts_refused; }},
    {Form::kCounter,
     {"terrace_checksums_verified_total", "Blocks compared with their checksums."},
     [](const DomainFigures& s) { return s.checksums_verified; }},
    {Form::kCounter,
     {"terrace_commits_gone_total", "Commits that came too late."},
     [](const DomainFigures& s) { return s.commits_gone; }},
    {Form::kCounter,
     {"terrace_leases_revoked_total", "Leases whose holders fell silent or died."},
     [](const DomainFigures& s) { return s.leases_revoked; }},
    {Form::kCounter,
     {"terrace_reads_repeated_total", "Blocks below that read wrong and were read again."},
     [](const DomainFigures& s) { return s.reads_repeated; }},
    {Form::kCounter,
     {"terrace_reads_recovered_total", "Of those, blocks that were right then."},
     [](const DomainFigures& s) { return s.reads_recovered; }},
    {Form::kCounter,
     {"terrace_read_ahead_blocks_total", "Blocks promoted before anybody asked."},
     [](const DomainFigures& s) { return s.read_ahead_blocks; }},
    {Form::kCounter,
     {"terrace_read_ahead_used_total", "Of those, blocks asked for while they were there."},
     [](const DomainFigures& s) { return s.read_ahead_used; }},
    {Form::kCounter,
     {"terrace_scrub_bytes_total", "Bytes at rest that were read and verified."},
     [](const DomainFigures& s) { return s.scrub_bytes; }},
    {Form::kCounter,
     {"terrace_scrub_mismatches_total", "Copies at rest that were not what was stored."},
     [](const DomainFigures& s) { return s.scrub_mismatches; }},
};

struct NamedValue {
  const char* name;
  uint64_t value;
};

void AddCounters(const FamilyText& text, const Families::Labels& labels, const char* label,
                 std::initializer_list<NamedValue> values, Families* all) {
  for (const NamedValue& each : values) {
    all->Counter(text, With(labels, label, each.name), Of(each.value));
  }
}

void AddMemory(const DomainFigures& figures, const Families::Labels& labels, Families* all) {
  constexpr FamilyText kSegments = {"terrace_dram_segments", "Segments of memory, by state."};
  const NamedValue states[] = {{"populated", figures.segments_populated},
                               {"max", figures.segments_max},
                               {"guaranteed", figures.segments_guaranteed},
                               {"borrowed", figures.segments_borrowed},
                               {"leaving", figures.segments_leaving}};
  for (const NamedValue& each : states) {
    all->Gauge(kSegments, With(labels, "state", each.name), Of(each.value));
  }
}

void AddConditions(const DomainSnapshot& domain, const Families::Labels& labels, Families* all) {
  std::array<bool, kConditionCount> holds{};
  for (const Trouble& trouble : TroublesOf(domain.figures, domain.kv_events)) {
    holds[static_cast<size_t>(trouble.condition)] = true;
  }
  for (size_t i = 0; i < kConditionCount; ++i) {
    all->Gauge({"terrace_degraded", "1 while a person should do something about it."},
               With(labels, "condition", kConditionNames[i]), holds[i] ? 1 : 0);
  }
}

void AddMoves(const DomainFigures& figures, const Families::Labels& labels, Families* all) {
  AddCounters({"terrace_reserve_keys_refused_total", "Keys that Reserve gave no slot."}, labels,
              "reason",
              {{"exists", figures.reserve_exists},
               {"busy", figures.reserve_busy},
               {"no_space", figures.reserve_no_space},
               {"passed_by", figures.reserve_passed_by}},
              all);
  AddCounters({"terrace_promotions_total", "Blocks brought up to DRAM, by result."}, labels,
              "result",
              {{"done", figures.promotions},
               {"failed", figures.promotions_failed},
               {"cancelled", figures.promotions_cancelled}},
              all);
  AddCounters({"terrace_demotions_total", "Blocks written below, by result."}, labels, "result",
              {{"done", figures.demotions}, {"failed", figures.demotions_failed}}, all);
  for (size_t i = 0; i < kSessionRefusalCount; ++i) {
    all->Counter({"terrace_sessions_refused_total", "Sessions not opened, by the limit they met."},
                 With(labels, "reason", kSessionRefusalNames[i]), Of(figures.sessions_refused[i]));
  }
}

void AddHits(const DomainFigures& figures, const Families::Labels& labels, Families* all) {
  for (size_t t = 0; t < kTierNames.size(); ++t) {
    const Families::Labels of_tier = With(labels, "tier", kTierNames[t]);
    all->Counter({"terrace_acquire_blocks_hit_total", "Blocks that clients could read, by tier."},
                 of_tier, Of(figures.hits.blocks_hit[t]));
    all->Counter({"terrace_acquire_tokens_hit_total", "Tokens of those blocks."}, of_tier,
                 Of(figures.acquire_tokens_by_tier[t]));
    all->Counter({"terrace_acquire_bytes_hit_total", "Bytes of those blocks."}, of_tier,
                 Of(figures.acquire_bytes_by_tier[t]));
    if (t == kDram) continue;
    all->Histogram({"terrace_promotion_seconds", "From slots taken to bytes verified, by tier."},
                   of_tier, figures.promotion_us[t].view(), kUsPerS);
  }
  for (size_t c = 0; c < kMissCauseNames.size(); ++c) {
    all->Counter({"terrace_acquire_blocks_missed_total", "Blocks that were not there, by cause."},
                 With(labels, "cause", kMissCauseNames[c]), Of(figures.hits.blocks_missed[c]));
  }
  all->Counter({"terrace_prefill_saved_seconds_total",
                "Hit tokens times the recompute cost that clients gave."},
               labels, Of(figures.hits.saved_us) / kUsPerS);
}

void AddTimes(const DomainFigures& figures, const Families::Labels& labels, Families* all) {
  for (size_t v = 0; v < kTimedVerbCount; ++v) {
    all->Histogram({"terrace_request_seconds", "From a request's last byte to its answer."},
                   With(labels, "verb", kTimedVerbNames[v]), figures.request_us[v].view(), kUsPerS);
  }
  all->Histogram({"terrace_residence_seconds", "From being stored to being forgotten."}, labels,
                 figures.residence_us.view(), kUsPerS);
  all->Histogram({"terrace_dram_idle_seconds", "Since its last use, of a copy dropped for room."},
                 labels, figures.dram_idle_us.view(), kUsPerS);
  all->Histogram({"terrace_reuse_distance_bytes", "Other bytes used between two uses of a block."},
                 labels, figures.reuse_distances.view(), 1);
}

// Of a group, or of those that are not shown and those that are gone.
struct GroupCounts {
  uint64_t blocks_asked = 0, saved_us = 0, tokens_asked = 0, block_count = 0;
  uint64_t blocks_hit[protocol::kTierKindCount] = {};
  uint64_t tokens_hit[protocol::kTierKindCount] = {};
};

void AddGroup(const GroupCounts& counts, const Families::Labels& labels, Families* all) {
  all->Gauge({"terrace_group_blocks", "Blocks of a SpaceGroup, in any tier."}, labels,
             Of(counts.block_count));
  all->Counter({"terrace_group_blocks_asked_total", "Blocks asked for by Acquire, by SpaceGroup."},
               labels, Of(counts.blocks_asked));
  all->Counter({"terrace_group_tokens_asked_total", "Tokens asked for by Acquire, by SpaceGroup."},
               labels, Of(counts.tokens_asked));
  all->Counter({"terrace_group_prefill_saved_seconds_total", "Prefill saved, by SpaceGroup."},
               labels, Of(counts.saved_us) / kUsPerS);
  for (size_t t = 0; t < kTierNames.size(); ++t) {
    const Families::Labels of_tier = With(labels, "tier", kTierNames[t]);
    all->Counter({"terrace_group_blocks_hit_total", "Blocks hit, by SpaceGroup and tier."}, of_tier,
                 Of(counts.blocks_hit[t]));
    all->Counter({"terrace_group_tokens_hit_total", "Tokens hit, by SpaceGroup and tier."}, of_tier,
                 Of(counts.tokens_hit[t]));
  }
}

void Move(uint64_t count, uint64_t* from, uint64_t* to) {
  *from -= count;
  *to += count;
}

// The sum over groups is the domain's: the last one is what the others leave of it. Groups may have
// the same name: they are one series.
void AddGroups(const DomainFigures& figures, const ShownGroups& groups,
               const Families::Labels& labels, Families* all) {
  GroupCounts rest{.blocks_asked = figures.hits.blocks_asked,
                   .saved_us = figures.hits.saved_us,
                   .tokens_asked = figures.acquire_tokens_asked,
                   .block_count = figures.block_count};
  std::ranges::copy(figures.hits.blocks_hit, rest.blocks_hit);
  std::ranges::copy(figures.acquire_tokens_by_tier, rest.tokens_hit);
  std::map<std::string_view, GroupCounts> by_name;
  for (size_t g = 0; g < groups.counts.size(); ++g) {
    const ShownGroups::Label& label = groups.labels[g];
    const ShownGroups::Counts& counts = groups.counts[g];
    GroupCounts& named = by_name[label.name];
    Move(counts.blocks_asked, &rest.blocks_asked, &named.blocks_asked);
    Move(counts.blocks_asked * label.block_tokens, &rest.tokens_asked, &named.tokens_asked);
    Move(counts.saved_us, &rest.saved_us, &named.saved_us);
    Move(counts.block_count, &rest.block_count, &named.block_count);
    for (size_t t = 0; t < kTierNames.size(); ++t) {
      Move(counts.blocks_hit[t], &rest.blocks_hit[t], &named.blocks_hit[t]);
      Move(counts.blocks_hit[t] * label.block_tokens, &rest.tokens_hit[t], &named.tokens_hit[t]);
    }
  }
  for (const auto& [name, counts] : by_name) AddGroup(counts, With(labels, "group", name), all);
  AddGroup(rest, With(labels, "group", kGroupOther), all);
}

void AddKvEvents(const KvEventCounters& events, const Families::Labels& labels, Families* all) {
  all->Gauge({"terrace_kv_events_on", "1 while routers are told of blocks."}, labels,
             events.is_on ? 1 : 0);
  all->Counter({"terrace_kv_events_total", "Events given to routers."}, labels, Of(events.events));
  all->Counter({"terrace_kv_events_lost_total", "Events lost for want of room, or of a stream."},
               labels, Of(events.lost));
  all->Counter({"terrace_kv_events_errors_total", "Errors after which sockets were made anew."},
               labels, Of(events.errors));
}

}  // namespace

void AddDomain(const DomainSnapshot& domain, Families* all) {
  const DomainFigures& figures = domain.figures;
  const Families::Labels labels = {{"domain", domain.name}};
  for (const DomainMetric& metric : kDomainMetrics) {
    const double value = Of(metric.value(figures));
    if (metric.form == Form::kCounter) {
      all->Counter(metric.text, labels, value);
    } else {
      all->Gauge(metric.text, labels, value);
    }
  }
  AddConditions(domain, labels, all);
  AddMemory(figures, labels, all);
  AddHits(figures, labels, all);
  AddMoves(figures, labels, all);
  AddTimes(figures, labels, all);
  AddGroups(figures, domain.groups, labels, all);
  AddTiers(figures, labels, all);
  if (domain.kv_events) AddKvEvents(*domain.kv_events, labels, all);
}

}  // namespace terrace
