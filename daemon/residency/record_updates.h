// RecordUpdates: blocks whose records in the persistent tier say something else by now (a pin, a
// priority, an expiry), to be written again some a turn.
//
// THREADING: store thread. LIMITS: kPerStepMax blocks a step; a block is queued once.
// OWNERSHIP: Block's RecordMark. A copy that is still being written is queued when it is Ready;
// what is dropped meanwhile is passed over.
#pragma once

#include <cstdint>
#include <deque>

#include "daemon/block/cache_domain.h"

namespace terrace {

class RecordUpdates {
 public:
  static constexpr uint32_t kPerStepMax = 64;

  explicit RecordUpdates(CacheDomain& domain) : d_(domain) {}

  // The block's records, if it has any, are to be written again.
  void Note(BlockId id);
  // Its copy in the persistent tier has become Ready, or goes.
  void OnCopyReady(BlockId id);
  void OnCopyGone(BlockId id);
  // Something waits, and the tier is on.
  bool has_work() const;
  void Step();

 private:
  RecordMark& MarkOf(BlockId id) { return d_.blocks.Change<RecordMark>(id, {}); }

  CacheDomain& d_;
  std::deque<BlockId> queue_;
};

}  // namespace terrace
