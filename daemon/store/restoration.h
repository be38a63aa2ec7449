// Restoration: what outlived the last daemon: groups, blocks of lower tiers, slots of the arena,
// what policies had learned. All of it comes before the first session, in this order.
//
// THREADING: the store thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/block/store_listener.h"
#include "daemon/restore/restore_summaries.h"
#include "terrace/space.h"
#include "terrace/status.h"
#include "tiers/tier.h"

namespace terrace {

struct StoreRooms;

// What a policy has learned, to outlive the process.
struct Learned {
  std::string name;
  std::vector<std::byte> state;
};

class Restoration {
 public:
  explicit Restoration(StoreRooms& store) : store_(store) {}

  // A group whose blocks follow.
  Status RestoreGroup(uint32_t domain_index, const SpaceGroupSpec& spec);
  // One member's bytes of a block, in an extent of lower tier `tier_index`. The owner to remember
  // (BlockRecord::owner), or kOwnerNone: not wanted, the tier frees the extent.
  uint32_t RestoreCopy(uint32_t domain_index, uint32_t tier_index, const BlockRecord& record,
                       const Extent& extent);
  // A RestoreCopy of this key is near.
  void PrefetchCopy(uint32_t domain_index, const BlockKey& key) const;
  // Joins members to blocks and blocks to chains; frees what is not whole. The tier has finished
  // its own restoring by then.
  RestoreSummary FinishRestore(uint32_t domain_index);

  // Takes over DomainOptions::slot_table and populated_segments as a predecessor left them, after
  // FinishRestore. `sessions` are its clients that may still touch the arena.
  AdoptSummary AdoptSlots(uint32_t domain_index, std::span<const SessionId> sessions);
  // One of them is dead, or done with the arena.
  void PredecessorSessionEnded(uint32_t domain_index, SessionId session);

  // By the tier and the policy; what has learned nothing is not among them.
  std::vector<Learned> WhatWasLearned(uint32_t domain_index) const;
  // From what a predecessor's policy of that name said. False: there is none such here, or it does
  // not understand the store.
  bool StartFrom(uint32_t domain_index, const Learned& learned);

 private:
  StoreRooms& store_;
};

}  // namespace terrace
