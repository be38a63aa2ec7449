#include "tools/terrace/top/sample.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace terrace::tools {
namespace {

constexpr size_t kDram = static_cast<size_t>(protocol::TierKind::kDram);
constexpr size_t kRedis = static_cast<size_t>(protocol::TierKind::kRedis);
constexpr std::array<const char*, protocol::kTierKindCount> kKinds = {"hbm", "dram", "nvme",
                                                                      "redis"};

TierSample DramOf(const StatsView& stats) {
  return {.kind = kKinds[kDram],
          .used_bytes = stats.Count("slot_bytes_used"),
          .capacity_bytes = stats.DramCapacityBytes()};
}

TierSample LowerOf(const StatsView& tier) {
  return {.kind = tier.Text("kind"),
          .used_bytes = tier.Count("used_bytes"),
          .capacity_bytes = tier.Count("capacity_bytes"),
          .read_bytes = tier.Count("read_bytes"),
          .written_bytes = tier.Count("written_bytes"),
          .trouble = tier.Text("is_healthy") == "false" ? "off" : ""};
}

std::vector<TierSample> TiersOf(const StatsView& stats) {
  std::vector<TierSample> tiers = {DramOf(stats)};
  for (const StatsView& lower : stats.Each("lower_tiers")) tiers.push_back(LowerOf(lower));
  if (const std::string ready = stats.Text("redis.is_ready"); !ready.empty()) {
    tiers.push_back({.kind = kKinds[kRedis],
                     .read_bytes = stats.Count("redis.read_bytes"),
                     .written_bytes = stats.Count("redis.written_bytes"),
                     .trouble = ready == "true" ? "" : "away"});
  }
  const std::vector<uint64_t> hits = stats.Counts("acquire_blocks_by_tier");
  const auto rank = [](const TierSample& tier) {
    return std::find(kKinds.begin(), kKinds.end(), tier.kind) - kKinds.begin();
  };
  for (TierSample& tier : tiers) {
    const auto kind = static_cast<size_t>(rank(tier));
    if (kind < hits.size()) tier.blocks_hit = hits[kind];
  }
  std::stable_sort(tiers.begin(), tiers.end(),
                   [&](const TierSample& a, const TierSample& b) { return rank(a) < rank(b); });
  return tiers;
}

Rate PerSecond(Figure before, Figure after, uint64_t elapsed_ms) {
  if (!before || !after || *after < *before || elapsed_ms == 0) return std::nullopt;
  return static_cast<double>(*after - *before) * 1000.0 / static_cast<double>(elapsed_ms);
}

Rate ShareOf(Rate part, Rate whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return std::min(*part / *whole, 1.0);
}

}  // namespace

Sample SampleOf(const StatsView& stats) {
  const std::vector<std::string> troubles = stats.Texts("troubles");
  Sample sample{.domain = stats.Text("domain.name"),
                .version = stats.Text("version"),
                .pid = stats.Text("pid"),
                .boot_id = stats.Text("boot_id"),
                .health = troubles.empty() ? stats.Text("health")
                                           : fmt::format("{}", fmt::join(troubles, "; ")),
                .uptime_ms = stats.Count("uptime_ms").value_or(0),
                .sessions = stats.Count("session_count"),
                .leases = stats.Count("lease_count"),
                .blocks = stats.Count("block_count"),
                .leased_blocks = stats.Count("leased_block_count"),
                .reserved_blocks = stats.Count("reserved_count"),
                .requests = stats.Count("acquire_requests"),
                .blocks_asked = stats.Count("acquire_blocks_asked"),
                .blocks_hit = stats.Count("acquire_blocks_hit"),
                .blocks_stored = stats.Count("blocks_sealed"),
                .blocks_evicted = stats.Count("blocks_evicted"),
                .blocks_expired = stats.Count("blocks_expired"),
                .tiers = TiersOf(stats)};
  for (const StatsView& group : stats.Each("groups")) {
    sample.groups.push_back({.id = group.Text("id"),
                             .name = group.Text("name"),
                             .block_count = group.Count("block_count"),
                             .block_bytes = group.Count("block_bytes"),
                             .blocks_asked = group.Count("acquire_blocks_asked"),
                             .blocks_hit = group.Count("acquire_blocks_hit")});
  }
  return sample;
}

Rates RatesBetween(const Sample& before, const Sample& after) {
  Rates rates{.is_restarted = before.boot_id != after.boot_id};
  if (!rates.is_restarted && after.uptime_ms > before.uptime_ms) {
    rates.elapsed_ms = after.uptime_ms - before.uptime_ms;
  }
  const auto rate = [&](Figure from, Figure to) { return PerSecond(from, to, rates.elapsed_ms); };
  rates.requests = rate(before.requests, after.requests);
  rates.asked = rate(before.blocks_asked, after.blocks_asked);
  rates.hit = rate(before.blocks_hit, after.blocks_hit);
  rates.stored = rate(before.blocks_stored, after.blocks_stored);
  rates.evicted = rate(before.blocks_evicted, after.blocks_evicted);
  rates.expired = rate(before.blocks_expired, after.blocks_expired);
  rates.share = ShareOf(rates.hit, rates.asked);
  if (rates.share) rates.miss_share = 1 - *rates.share;
  for (const TierSample& tier : after.tiers) {
    TierRates& of_tier = rates.tiers.emplace_back();
    const auto found =
        std::find_if(before.tiers.begin(), before.tiers.end(),
                     [&](const TierSample& other) { return other.kind == tier.kind; });
    if (found == before.tiers.end()) continue;
    of_tier.hits = rate(found->blocks_hit, tier.blocks_hit);
    of_tier.read_bytes = rate(found->read_bytes, tier.read_bytes);
    of_tier.written_bytes = rate(found->written_bytes, tier.written_bytes);
    of_tier.share = ShareOf(of_tier.hits, rates.asked);
  }
  for (const GroupSample& group : after.groups) {
    GroupRates& of_group = rates.groups.emplace_back();
    const auto found = std::find_if(before.groups.begin(), before.groups.end(),
                                    [&](const GroupSample& other) { return other.id == group.id; });
    if (found == before.groups.end()) continue;
    of_group.asked = rate(found->blocks_asked, group.blocks_asked);
    of_group.hit = rate(found->blocks_hit, group.blocks_hit);
    of_group.share = ShareOf(of_group.hit, of_group.asked);
  }
  return rates;
}

}  // namespace terrace::tools
