#include "daemon/store/statistics.h"

#include "daemon/log/printable.h"
#include "daemon/store/store_rooms.h"

namespace terrace {
namespace {

void AddGroups(const CacheDomain& domain, DomainStats* stats) {
  for (uint32_t g = 0; g < domain.groups.size(); ++g) {
    const Group& group = *domain.groups[g];
    const uint64_t block_count = domain.index.group_block_count(g);
    stats->groups.push_back({.name = group.spec().name,
                             .id = group.id(),
                             .member_count = static_cast<uint32_t>(group.spec().members.size()),
                             .block_tokens = group.block_tokens(),
                             .block_count = block_count,
                             .block_bytes = group.block_bytes(),
                             .recompute_ns_per_token = group.recompute_ns_per_token,
                             .hits = domain.meter.SinceStart(g)});
  }
  stats->group_count = static_cast<uint32_t>(stats->groups.size());
}

void AddTiers(const DomainRooms& rooms, DomainStats* stats) {
  const CacheDomain& domain = rooms.domain;
  for (uint32_t tier = 0; tier < domain.lower.size(); ++tier) {
    const LowerTier& lower = domain.lower[tier];
    stats->lower_tiers.push_back({.kind = lower.tier->kind(),
                                  .stats = lower.tier->stats(),
                                  .block_count = lower.block_count,
                                  .persisted_block_count = lower.persisted_block_count,
                                  .written_bytes_of_day = lower.written.Sum(),
                                  .reads_queued = rooms.mover.reads_queued(tier),
                                  .writes_queued = rooms.mover.writes_queued(tier)});
  }
  if (const DeviceUse& device = domain.options.device; device.tier != nullptr) {
    stats->device = {.device = device.device,
                     .why = device.why,
                     .orders = device.tier->order_stats(),
                     .blocks_served = domain.counters.device_blocks_served};
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

DomainStats StatsOf(const StoreRooms& store, const DomainRooms& rooms) {
  const CacheDomain& domain = rooms.domain;
  DomainStats stats = domain.counters;
  const SlotAllocator::Usage usage = domain.slots.usage();
  stats.name = domain.options.name;
  stats.eviction_policy = domain.limits.eviction_policy;
  stats.lower_eviction_policy = domain.limits.lower_eviction_policy;
  stats.admission_policy = domain.limits.admission_policy;
  stats.write_bytes_per_day = domain.options.write_bytes_per_day;
  stats.segment_bytes = domain.options.segment_bytes;
  stats.segments_populated = store.segments.populated_count(domain.domain_index);
  stats.segments_max = domain.options.segments_max;
  stats.segments_guaranteed = domain.options.segments_guaranteed;
  stats.segments_borrowed = store.segments.borrowed_count(domain.domain_index);
  stats.segments_leaving = store.segments.leaving_count(domain.domain_index);
  stats.slot_bytes_used = usage.used_bytes;
  stats.slot_bytes_stranded = usage.waste_bytes + usage.free_slot_bytes;
  stats.fenced_bytes = domain.fenced_bytes;
  stats.inherited_bytes = domain.inherited.byte_count();
  stats.fenced_slot_count = domain.fenced_slot_count;
  stats.session_count = domain.session_count;
  stats.lease_count = domain.leases.count();
  stats.block_count = domain.index.live_count();
  stats.reserved_count = domain.reserved_count;
  stats.pinned_count = domain.index.pinned_count();
  AddGroups(domain, &stats);
  AddTiers(rooms, &stats);
  stats.hits = domain.meter.SinceStart(protocol::kHitRateAllGroups);
  stats.reuse_distances = domain.meter.reuse_distances();
  stats.sessions_refused = store.sessions.refused(domain.domain_index);
  stats.copies = CopyStatsOf(store.sessions, domain.domain_index);
  if (domain.options.shared.tier != nullptr) {
    stats.shared = rooms.shared_writer.stats();
    rooms.shared_reader.AddStats(&*stats.shared);
    stats.shared->tier = domain.options.shared.tier->stats();
  }
  return stats;
}

}  // namespace terrace
