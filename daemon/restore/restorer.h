// Restorer: makes blocks of what a tier of one domain still holds after a restart. Copies come
// member by member, in whatever order the tier finds them; at the end they are joined to chains,
// and what is not whole is given back.
//
// THREADING: store thread, before the first session. LIMITS: blocks_max; 24 bytes a block until
// Finish.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "daemon/residency/residency.h"
#include "daemon/restore/restore_summaries.h"

namespace terrace {

class Restorer {
 public:
  Restorer(CacheDomain& domain, Residency& residency) : d_(domain), residency_(residency) {}

  // The block that this member's bytes belong to; kBlockNone if they are not wanted.
  BlockId Take(uint32_t tier, const BlockRecord& record, const Extent& extent);
  // One of this key is near; of the same group as the last one, mostly.
  [[gnu::always_inline]] void Prefetch(const BlockKey& key) const {
    d_.index.Prefetch(last_group_index_, key);
  }
  RestoreSummary Finish();

 private:
  struct Place {
    uint64_t epoch = 0;  // the latest of its members
    BlockKey parent;
  };
  struct Order {
    uint64_t epoch = 0;
    BlockId id = kBlockNone;
  };

  uint32_t GroupOf(const GroupId& id);
  void LinkAll();
  std::vector<Order> Ordered() const;

  CacheDomain& d_;
  Residency& residency_;
  std::vector<Place> places_;                             // by BlockId
  std::unordered_map<uint64_t, uint32_t> group_indexes_;  // by the low half of the GroupId
  uint32_t tier_ = kLowerTiersMax;
  uint32_t last_group_index_ = 0;
  uint64_t dropped_count_ = 0;
};

}  // namespace terrace
