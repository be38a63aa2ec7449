// DomainQuotas: what the configuration lets each domain have of the tiers that all of them fill,
// and what each has: for `terrace quota`. Memory is shared out by the store (SegmentBroker).
//
// THREADING: store thread. OWNERSHIP: outlives the tiers and the store.
#pragma once

#include <optional>
#include <string>

#include "daemon/config/config.h"
#include "daemon/store/statistics.h"
#include "tiers/tier_shares.h"

namespace terrace {

class DomainQuotas {
 public:
  // REQUIRES: what ResolveConfig has filled in.
  explicit DomainQuotas(const DaemonConfig& config);

  // Null: there is no such tier.
  TierShares* nvme() { return nvme_ ? &*nvme_ : nullptr; }
  TierShares* redis() { return redis_ ? &*redis_ : nullptr; }

  // As the configuration says from now on.
  void Retune(const DaemonConfig& config);
  // JSON, docs/OPERATIONS.md. A turn's work: grows with domains and tiers alone.
  std::string Document(const DaemonConfig& config, const Statistics& statistics) const;

 private:
  std::optional<TierShares> nvme_;
  std::optional<TierShares> redis_;
};

}  // namespace terrace
