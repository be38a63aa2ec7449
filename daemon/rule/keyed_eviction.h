// KeyedEviction: blocks leave by their keys, alone or with all that continues them. A block with a
// child that stays stays. One Evict is one of these, however many steps it takes: it counts each
// block once, and looks below none twice.
//
// THREADING: store thread. LIMITS: a call looks at kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "daemon/block/block.h"
#include "daemon/block/cache_domain.h"
#include "daemon/residency/residency.h"
#include "daemon/rule/block_marks.h"
#include "daemon/transfer/shared_writer.h"
#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace {

// What all copies of a block take on this host.
uint64_t BytesOf(const CacheDomain& domain, const Block& block);

class KeyedEviction {
 public:
  struct Options {
    bool is_dry_run = false;
    bool is_all = false;  // of its groups: the shared tier forgets those as a whole
  };
  KeyedEviction(CacheDomain& domain, Residency& residency, SharedWriter& shared, Options options)
      : d_(domain), residency_(residency), shared_(shared), options_(options) {}

  // These blocks alone. Keys of a chain come head first: the tail goes first. Counts in `reply` add
  // up.
  void EvictKeys(const std::vector<BlockId>& ids, protocol::EvictReply* reply);
  // What is left of a walk with children first, as far as one call may look. True: it is through.
  // kBusy: it would have to begin again too often. REQUIRES: the walk is open.
  Result<bool> EvictWalked(uint64_t walk, protocol::EvictReply* reply);

 private:
  static Status Busy();
  bool MayGo(BlockId id) const;
  void VisitWalked(BlockId id, protocol::EvictReply* reply);
  void EraseBefore(BlockId id);
  void Count(BlockId id, protocol::EvictReply* reply);

  CacheDomain& d_;
  Residency& residency_;
  SharedWriter& shared_;
  const Options options_;
  // Of walks, all together.
  BlockMarks seen_;         // looked at, and still there
  BlockMarks keeps_child_;  // in a dry run: with a child that would stay

  // Of keys, which are looked up and not walked.
  std::unordered_set<BlockId> skipped_;
  std::unordered_set<BlockId> gone_;                     // in a dry run: what would be
  std::unordered_map<BlockId, uint32_t> children_gone_;  // in a dry run: of a block, how many
};

}  // namespace terrace
