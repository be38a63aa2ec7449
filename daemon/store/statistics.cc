#include "daemon/store/statistics.h"

#include <algorithm>
#include <optional>

#include "daemon/log/printable.h"
#include "daemon/store/store_rooms.h"

namespace terrace {
namespace {

void FillTiers(const DomainRooms& rooms, DomainFigures* figures) {
  const CacheDomain& domain = rooms.domain;
  const GroupFiles* const files = domain.limits.group_files;
  figures->group_files =
      files == nullptr ? GroupFilesTrouble{} : files->TroubleOf(domain.domain_index);
  figures->lower_tiers.clear();
  for (uint32_t tier = 0; tier < domain.lower.size(); ++tier) {
    const LowerTier& lower = domain.lower[tier];
    figures->lower_tiers.push_back({.kind = lower.tier->kind(),
                                    .stats = lower.tier->stats(),
                                    .block_count = lower.block_count,
                                    .persisted_block_count = lower.persisted_block_count,
                                    .written_bytes_of_day = lower.written.Sum(),
                                    .reads_queued = rooms.mover.promotions().queued_count(tier),
                                    .writes_queued = rooms.mover.write_back().queued_count(tier),
                                    .troubles = lower.tier->troubles(),
                                    .is_off = lower.is_off});
  }
  if (const DeviceUse& device = domain.options.device; device.tier != nullptr) {
    figures->device = {.device = device.device,
                       .why = device.why,
                       .orders = device.tier->order_stats(),
                       .blocks_served = domain.counters.device_blocks_served};
  }
  if (domain.options.shared.tier != nullptr) {
    figures->shared = rooms.shared_writer.stats();
    rooms.shared_reader.AddStats(&*figures->shared);
    figures->shared->tier = domain.options.shared.tier->stats();
  }
}

// What the domain's clients have reported of their copies to and from devices.
DomainStats::CopyStats CopyStatsOf(const SessionRegister& sessions, uint32_t domain_index) {
  DomainStats::CopyStats sum;
  sessions.ForEach([&](SessionIndex, const SessionRecord& record) {
    if (record.is_hung_up || record.domain_index != domain_index || record.report == nullptr) {
      return;
    }
    const protocol::DeviceReport& report = *record.report;
    ++sum.client_count;
    sum.pinned_bytes += report.pinned_bytes;
    sum.straight_bytes += report.straight_bytes;
    sum.bounced_bytes += report.bounced_bytes;
    sum.registrations_failed += report.failed_count;
    if (sum.clients.size() == kCopyClientsShownMax) return;
    sum.clients.push_back({.session = record.id,
                           .backend = Printable(report.backend),
                           .why = Printable(report.why),
                           .counts = report});
  });
  return sum;
}

}  // namespace

void Statistics::Fill(uint32_t domain_index, DomainFigures* figures) const {
  const DomainRooms& rooms = store_.at(domain_index);
  const CacheDomain& domain = rooms.domain;
  const SlotAllocator::Usage usage = domain.slots.usage();
  static_cast<DomainCounters&>(*figures) = domain.counters;
  figures->write_bytes_per_day = domain.options.write_bytes_per_day;
  figures->segment_bytes = domain.options.segment_bytes;
  figures->segments_populated = store_.segments.ledger().populated_count(domain_index);
  figures->segments_max = domain.options.segments_max;
  figures->dram_capacity_bytes =
      std::min(figures->segments_max, store_.options.segments_total) * figures->segment_bytes;
  figures->segments_guaranteed = domain.options.segments_guaranteed;
  figures->segments_borrowed = store_.segments.ledger().borrowed_count(domain_index);
  figures->segments_leaving = store_.segments.ledger().leaving_count(domain_index);
  const SegmentLedger::Domain& memory = store_.segments.ledger().domains()[domain_index];
  figures->arena_page_bytes = domain.options.arena->PageBytes();
  figures->arena_shortage = memory.is_starved() ? domain.options.arena->Shortage() : "";
  figures->slot_bytes_used = usage.used_bytes;
  figures->slot_bytes_stranded = usage.waste_bytes + usage.free_slot_bytes;
  figures->fenced_bytes = domain.fenced_bytes;
  figures->fenced_bytes_max = domain.limits.fenced_bytes_max;
  figures->inherited_bytes = domain.inherited.byte_count();
  figures->fenced_slot_count = domain.fenced_slot_count;
  figures->session_count = domain.session_count;
  figures->group_count = static_cast<uint32_t>(domain.groups.size());
  figures->lease_count = domain.leases.count();
  figures->block_count = domain.index.runs().live_count();
  figures->reserved_count = domain.reserved_count;
  figures->pinned_count = domain.index.runs().pinned_count();
  figures->engine_pinned_blocks = domain.pinned_blocks;
  figures->engine_pinned_bytes = domain.pinned_bytes;
  rooms.named_pins.Sum(&figures->named_pinned_blocks, &figures->named_pinned_bytes);
  figures->hits = domain.meter.SinceStart(protocol::kHitRateAllGroups);
  figures->reuse_distances = domain.meter.reuse_distances();
  figures->sessions_refused = store_.sessions.refused(domain_index);
  figures->serving = domain.serving;
  figures->scrub_rest_us = rooms.scrubber.RestUs();
  figures->refuted_ago_us =
      domain.refuted_us == 0 ? UINT64_MAX : domain.NowUs() - domain.refuted_us;
  figures->refuted_writer.reset();
  if (!domain.refuted_writers.empty()) figures->refuted_writer = domain.refuted_writers.back();
  FillTiers(rooms, figures);
}

void Statistics::CountSegments(uint32_t* held, uint32_t* leaving) const {
  *held = *leaving = 0;
  for (uint32_t i = 0; i < store_.domains.size(); ++i) {
    *held += store_.segments.ledger().populated_count(i);
    *leaving += store_.segments.ledger().leaving_count(i);
  }
}

void Statistics::FillShownGroups(uint32_t domain_index, size_t group_count_max,
                                 ShownGroups* shown) const {
  const CacheDomain& domain = store_.at(domain_index).domain;
  const size_t count = std::min(group_count_max, domain.groups.size());
  if (shown->labels_revision != domain.groups.revision() || shown->labels.size() != count) {
    shown->labels.resize(count);
    for (size_t g = 0; g < count; ++g) {
      const SpaceGroupSpec& spec = domain.groups[g]->spec();
      shown->labels[g].name = spec.name;
      shown->labels[g].block_tokens = spec.block_tokens();
    }
    shown->labels_revision = domain.groups.revision();
  }
  shown->counts.resize(count);
  for (uint32_t g = 0; g < count; ++g) {
    const protocol::HitRateCounts& hits = domain.meter.SinceStart(g);
    ShownGroups::Counts& counts = shown->counts[g];
    counts.block_count = domain.index.runs().group(g).block_count;
    counts.blocks_asked = hits.blocks_asked;
    counts.saved_us = hits.saved_us;
    std::ranges::copy(hits.blocks_hit, counts.blocks_hit);
  }
}

uint32_t Statistics::AddGroups(uint32_t domain_index, uint32_t first, uint32_t group_count_max,
                               std::vector<DomainStats::GroupStats>* groups) const {
  const CacheDomain& domain = store_.at(domain_index).domain;
  const auto count = static_cast<uint32_t>(domain.groups.size());
  const uint32_t end = first + std::min(group_count_max, count - std::min(first, count));
  for (uint32_t g = first; g < end; ++g) {
    const Group& group = *domain.groups[g];
    groups->push_back({.name = group.spec().name,
                       .id = group.id(),
                       .member_count = static_cast<uint32_t>(group.spec().members.size()),
                       .block_tokens = group.block_tokens(),
                       .block_count = domain.index.runs().group(g).block_count,
                       .block_bytes = group.block_bytes(),
                       .recompute_ns_per_token = group.recompute_ns_per_token,
                       .hits = domain.meter.SinceStart(g)});
  }
  return end < count ? end : 0;
}

DomainStats Statistics::Brief(uint32_t domain_index, uint32_t group_count_max) const {
  const CacheDomain& domain = store_.at(domain_index).domain;
  DomainStats stats;
  Fill(domain_index, &stats);
  stats.name = domain.options.name;
  stats.eviction_policy = domain.limits.eviction_policy;
  stats.lower_eviction_policy = domain.limits.lower_eviction_policy;
  stats.admission_policy = domain.limits.admission_policy;
  stats.refuted_writers = domain.refuted_writers;
  AddGroups(domain_index, 0, group_count_max, &stats.groups);
  return stats;
}

DomainStats Statistics::Of(uint32_t domain_index) const {
  DomainStats stats = Brief(domain_index, UINT32_MAX);
  stats.copies = CopyStatsOf(store_.sessions, domain_index);
  return stats;
}

std::vector<protocol::HitRateCounts> Statistics::HitsByMinute(uint32_t domain_index) const {
  const CacheDomain& domain = store_.at(domain_index).domain;
  const auto minutes = domain.meter.Minutes(domain.NowUs());
  return {minutes.begin(), minutes.end()};
}

}  // namespace terrace
