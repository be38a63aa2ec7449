#include "daemon/metrics/domain_families.h"
#include "daemon/telemetry/names.h"

namespace terrace {
namespace {

double Of(uint64_t value) { return static_cast<double>(value); }

constexpr FamilyText kCapacity = {"terrace_tier_capacity_bytes", "What the tier may hold."};
constexpr FamilyText kUsed = {"terrace_tier_used_bytes", "Of that, in use."};
constexpr FamilyText kHealthy = {"terrace_tier_healthy", "0 while the tier is off after errors."};
constexpr FamilyText kRead = {"terrace_tier_read_bytes_total", "Bytes read from the tier."};
constexpr FamilyText kWritten = {"terrace_tier_written_bytes_total", "Bytes written to the tier."};
constexpr FamilyText kInFlight = {"terrace_tier_transfers_in_flight",
                                  "Transfers with the tier, or commands with the server."};
constexpr FamilyText kQueued = {"terrace_tier_queued_blocks",
                                "Blocks that wait for their turn to be read or written."};

void AddShare(const ShareStats& share, const Families::Labels& labels, Families* all) {
  if (share.max_bytes == 0) return;
  const struct {
    const char* state;
    uint64_t byte_count;
  } states[] = {{"held", share.held_bytes},       {"guaranteed", share.guaranteed_bytes},
                {"max", share.max_bytes},         {"borrowed", share.borrowed_bytes},
                {"leaving", share.leaving_bytes}, {"asked", share.asked_bytes},
                {"above", share.above_bytes}};
  for (const auto& [state, byte_count] : states) {
    all->Gauge({"terrace_tier_share_bytes", "What the domain holds of a tier, and may."},
               With(labels, "state", state), Of(byte_count));
  }
}

void AddLower(const DomainFigures& domain, const DomainFigures::LowerTierStats& tier,
              const Families::Labels& labels, Families* all) {
  const TierStats& stats = tier.stats;
  all->Gauge(kCapacity, labels, Of(stats.capacity_bytes));
  all->Gauge(kUsed, labels, Of(stats.used_bytes));
  all->Gauge(kHealthy, labels, stats.is_healthy ? 1 : 0);
  all->Counter(kRead, labels, Of(stats.read_bytes));
  all->Counter(kWritten, labels, Of(stats.written_bytes));
  all->Gauge(kInFlight, labels, Of(stats.transfers_in_flight));
  all->Gauge(kQueued, With(labels, "direction", "read"), Of(tier.reads_queued));
  all->Gauge(kQueued, With(labels, "direction", "write"), Of(tier.writes_queued));
  all->Gauge({"terrace_tier_blocks", "Blocks with a copy in the tier."}, labels,
             Of(tier.block_count));
  all->Gauge({"terrace_tier_persisted_blocks", "Of those, blocks that would outlive the process."},
             labels, Of(tier.persisted_block_count));
  all->Counter({"terrace_tier_failed_transfers_total", "Transfers that failed."}, labels,
               Of(stats.failed_transfers));
  all->Gauge({"terrace_tier_suspect_bytes", "Places that read wrong and are being tried."}, labels,
             Of(stats.suspect_bytes));
  all->Gauge({"terrace_tier_quarantined_bytes", "Places that did not keep what was written."},
             labels, Of(stats.quarantined_bytes));
  all->Gauge({"terrace_tier_left_alone_bytes",
              "Files that the start found damaged or under another secret."},
             labels, Of(stats.left_alone_bytes));
  all->Gauge({"terrace_tier_written_bytes_of_day",
              "Bytes written in the last 24 hours, since the start at most."},
             labels, Of(tier.written_bytes_of_day));
  AddShare(stats.share, labels, all);
  const bool has_budget =
      tier.kind != protocol::TierKind::kHbm && domain.write_bytes_per_day != UINT64_MAX;
  if (!has_budget) return;
  all->Gauge({"terrace_tier_write_budget_bytes_of_day", "What may be written in 24 hours."}, labels,
             Of(domain.write_bytes_per_day));
}

void AddShared(const DomainFigures::SharedStats& shared, const Families::Labels& labels,
               Families* all) {
  const SharedTierStats& tier = shared.tier;
  all->Gauge(kHealthy, labels, tier.is_ready ? 1 : 0);
  all->Counter(kRead, labels, Of(tier.read_bytes));
  all->Counter(kWritten, labels, Of(tier.written_bytes));
  all->Gauge(kInFlight, labels, Of(tier.operations_in_flight));
  all->Gauge(kQueued, With(labels, "direction", "write"), Of(shared.queued_blocks));
  AddShare(shared.share, labels, all);
  all->Gauge({"terrace_shared_queued_bytes", "Bytes that wait to be stored on the server."}, labels,
             Of(shared.queued_bytes));
  all->Gauge({"terrace_shared_queue_bytes_max", "At most so many; beyond, blocks are dropped."},
             labels, Of(shared.queue_bytes_max));
  all->Gauge({"terrace_shared_forgets_owed", "Erased groups the server does not know of."}, labels,
             Of(tier.forgets_owed));
  all->Gauge({"terrace_shared_erasures_owed", "Erased blocks the server does not know of."}, labels,
             Of(tier.erasures_owed));
  all->Counter({"terrace_shared_breaker_opened_total", "Times the server was given a rest."},
               labels, Of(tier.breaker_opened));
  all->Counter({"terrace_shared_seeks_total", "Questions what the server has."}, labels,
               Of(shared.seeks));
  all->Counter({"terrace_shared_seeks_late_total", "Of those, not answered in time."}, labels,
               Of(shared.seeks_late));
  const struct {
    const char* result;
    uint64_t count;
  } stores[] = {{"stored", shared.blocks_stored},        {"existing", shared.blocks_existing},
                {"failed", shared.blocks_failed},        {"dropped", shared.blocks_dropped},
                {"outdated", shared.blocks_outdated},    {"unnamed", shared.blocks_unnamed},
                {"over_quota", shared.blocks_over_quota}},
    fetches[] = {{"fetched", shared.blocks_fetched},
                 {"missed", shared.blocks_missed},
                 {"cancelled", shared.blocks_cancelled},
                 {"not_worth", shared.blocks_not_worth}};
  for (const auto& [result, count] : stores) {
    all->Counter({"terrace_shared_stores_total", "Blocks given to the server, by result."},
                 With(labels, "result", result), Of(count));
  }
  for (const auto& [result, count] : fetches) {
    all->Counter({"terrace_shared_fetches_total", "Blocks asked from the server, by result."},
                 With(labels, "result", result), Of(count));
  }
}

void AddDevice(const DomainFigures::DeviceStats& device, const Families::Labels& labels,
               Families* all) {
  const HbmTier::OrderStats& orders = device.orders;
  all->Gauge({"terrace_device_clients", "Clients that are sent work orders."}, labels,
             Of(orders.executors));
  all->Counter({"terrace_device_blocks_served_total", "Blocks served where they lie."}, labels,
               Of(device.blocks_served));
  all->Gauge({"terrace_device_orders_late", "Work orders past their deadline."}, labels,
             Of(orders.late));
  all->Counter({"terrace_device_orders_total", "Work orders that were sent."}, labels,
               Of(orders.issued));
  all->Counter({"terrace_device_orders_wrong_total", "Orders that brought other bytes."}, labels,
               Of(orders.wrong));
}

}  // namespace

void AddTiers(const DomainFigures& figures, const Families::Labels& labels, Families* all) {
  const Families::Labels dram = With(labels, "tier", "dram");
  all->Gauge(kCapacity, dram, Of(figures.dram_capacity_bytes));
  all->Gauge(kUsed, dram, Of(figures.slot_bytes_used));
  for (const DomainFigures::LowerTierStats& tier : figures.lower_tiers) {
    AddLower(figures, tier, With(labels, "tier", kTierNames[static_cast<size_t>(tier.kind)]), all);
  }
  if (figures.shared) AddShared(*figures.shared, With(labels, "tier", "redis"), all);
  if (figures.device) AddDevice(*figures.device, labels, all);
}

}  // namespace terrace
