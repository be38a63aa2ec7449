#include "daemon/domain/domain_quotas.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/log/json_text.h"
#include "daemon/telemetry/names.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using nlohmann::json;
using protocol::TierKind;

// In whole slabs: that is how a drive is shared out.
std::vector<TierShares::Share> NvmeSharesOf(const DaemonConfig& config) {
  std::vector<TierShares::Share> shares;
  for (const DomainConfig& domain : config.domains) {
    shares.push_back(
        {.guaranteed_bytes = RoundDown(domain.nvme_guaranteed_bytes, config.nvme.slab_bytes),
         .max_bytes = RoundDown(domain.nvme_max_bytes, config.nvme.slab_bytes),
         .priority = domain.borrow_priority});
  }
  return shares;
}

std::vector<TierShares::Share> RedisSharesOf(const DaemonConfig& config) {
  std::vector<TierShares::Share> shares;
  for (const DomainConfig& domain : config.domains) {
    shares.push_back({.guaranteed_bytes = domain.redis_guaranteed_bytes,
                      .max_bytes = domain.redis_max_bytes,
                      .priority = domain.borrow_priority});
  }
  return shares;
}

std::string_view NameOf(TierKind kind) { return kTierNames[static_cast<size_t>(kind)]; }

json TierDocument(TierKind kind, const ShareStats& share, uint64_t used_bytes) {
  const bool has_limit = kind != TierKind::kRedis || share.max_bytes < kRedisBytesMax;
  return {{"tier", NameOf(kind)},
          {"used_bytes", used_bytes},
          {"held_bytes", share.held_bytes},
          {"guaranteed_bytes", share.guaranteed_bytes},
          {"max_bytes", has_limit ? json(share.max_bytes) : json()},
          {"borrowed_bytes", share.borrowed_bytes},
          {"leaving_bytes", share.leaving_bytes},
          {"asked_bytes", share.asked_bytes},
          {"above_bytes", share.above_bytes}};
}

ShareStats DramShareOf(const DomainFigures& figures) {
  const uint64_t unit = figures.segment_bytes;
  const uint32_t staying = figures.segments_populated - figures.segments_leaving;
  const uint32_t borrowed = staying - std::min(staying, figures.segments_guaranteed);
  return {.guaranteed_bytes = figures.segments_guaranteed * unit,
          .max_bytes = figures.dram_capacity_bytes,
          .held_bytes = figures.segments_populated * unit,
          .borrowed_bytes = borrowed * unit,
          .leaving_bytes = figures.segments_leaving * unit};
}

json TiersOf(const DomainFigures& figures) {
  json tiers = json::array();
  tiers.push_back(TierDocument(TierKind::kDram, DramShareOf(figures), figures.slot_bytes_used));
  for (const DomainFigures::LowerTierStats& lower : figures.lower_tiers) {
    ShareStats share = lower.stats.share;
    if (lower.kind == TierKind::kHbm) {  // in equal shares, once and for all
      share = {.guaranteed_bytes = lower.stats.capacity_bytes,
               .max_bytes = lower.stats.capacity_bytes,
               .held_bytes = lower.stats.capacity_bytes};
    }
    tiers.push_back(TierDocument(lower.kind, share, lower.stats.used_bytes));
  }
  if (figures.shared) {
    const ShareStats& share = figures.shared->share;
    tiers.push_back(TierDocument(TierKind::kRedis, share, share.held_bytes));
  }
  return tiers;
}

}  // namespace

DomainQuotas::DomainQuotas(const DaemonConfig& config) {
  if (config.nvme.is_on()) {
    nvme_.emplace(TierShares::Lending::kAll, config.nvme.capacity_bytes, NvmeSharesOf(config));
  }
  if (config.redis.is_on()) {
    redis_.emplace(TierShares::Lending::kNothing, config.redis.capacity_bytes,
                   RedisSharesOf(config));
  }
}

void DomainQuotas::Retune(const DaemonConfig& config) {
  if (nvme_) nvme_->Set(config.nvme.capacity_bytes, NvmeSharesOf(config));
  if (redis_) redis_->Set(config.redis.capacity_bytes, RedisSharesOf(config));
}

std::string DomainQuotas::Document(const DaemonConfig& config, const Statistics& statistics) const {
  json domains = json::array();
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    DomainFigures figures;
    statistics.Fill(i, &figures);
    domains.push_back({{"name", config.domains[i].name},
                       {"borrow_priority", config.domains[i].borrow_priority},
                       {"ttl_default_s", config.domains[i].ttl_default_s},
                       {"tiers", TiersOf(figures)}});
  }
  json capacities = {{"dram", config.dram_bytes}};
  if (nvme_) capacities["nvme"] = config.nvme.capacity_bytes;
  if (redis_) {
    const bool has_limit = config.redis.capacity_bytes < kRedisBytesMax;
    capacities["redis"] = has_limit ? json(config.redis.capacity_bytes) : json();
  }
  return JsonText({{"capacity_bytes", std::move(capacities)}, {"domains", std::move(domains)}});
}

}  // namespace terrace
