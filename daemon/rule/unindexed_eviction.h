// UnindexedEviction: what an erasure covers and no index names: slots that are parked in kept
// memory, and entries that are left on drives, since their group or its key is not there. Whoever
// opens the group, or a later start, would find them, so an erasure takes them along before it is
// answered, and before it looks at the index: nothing is adopted behind it then. No pin keeps it.
//
// Of what continues a key nobody knows more here than how deep it lies: all that lies deeper in the
// key's group goes with it; of a key that is nowhere, all of the group (or groups) but first
// blocks.
//
// THREADING: store thread. LIMITS: a call takes kBlocksPerTurnMax slots or entries at most.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/block/cache_domain.h"
#include "daemon/restore/adoption.h"
#include "terrace/protocol.h"
#include "tiers/left_blocks.h"

namespace terrace {

class UnindexedEviction {
 public:
  // With the store, before anything is parked or left.
  UnindexedEviction(CacheDomain& domain, Adoption& adoption);

  bool is_empty() const {
    return adoption_.parked_slot_count() == 0 && (left_ == nullptr || !left_->has_left());
  }
  // All of a group, or of any (kAllGroups), in one tier, or in all (none). Counts in `reply` add
  // up. True: it has gone; false: call it again.
  bool EvictAll(uint32_t group_index, std::optional<TierKind> tier, protocol::EvictReply* reply);
  // What has these keys and, with kEvictSubtree, what continues them, or one of `found`, which the
  // index names. The same answer, but that GoOn is called again.
  bool EvictKeys(const KeysQuery& query, std::span<const BlockId> found,
                 protocol::EvictReply* reply);
  // The next call behind one of EvictKeys that was not through: its keys have gone by now.
  bool GoOn(protocol::EvictReply* reply);
  // Nobody has used it for as long as the process runs.
  uint64_t idle_us() const { return d_.NowUs() - since_us_; }

 private:
  std::optional<GroupId> IdOf(uint32_t group_index) const;
  void MarkBelow(const GroupId& group, uint64_t position);
  void MarkBelowKey(const std::optional<GroupId>& group, const BlockKey& key, bool is_indexed);
  bool Take(UnindexedTaken* taken, protocol::EvictReply* reply);

  CacheDomain& d_;
  Adoption& adoption_;
  LeftBlocks* const left_;  // null: no tier keeps what it cannot serve
  const uint64_t since_us_;
};

}  // namespace terrace
