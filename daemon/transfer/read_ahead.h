// ReadAhead: what lies below a chain that was just asked for will probably be asked for next, and
// is promoted while the tier has nothing else to read, into room that is free or holds clean copies
// not used since. Read-ahead never evicts what would be lost, and never makes anybody short of
// room. So is what somebody left below, having computed it sooner: else a prompt that is asked for
// every minute would be computed every minute, and nobody would find out that the tier is fast
// again.
//
// THREADING: store thread. LIMITS: the constants below; StoreOptions::read_ahead_blocks a chain.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "daemon/transfer/promotions.h"

namespace terrace {

class ReadAhead {
 public:
  static constexpr uint32_t kInFlightMax = 4;  // of a tier; somebody may ask meanwhile
  static constexpr uint32_t kQueuedMax = 256;
  static constexpr uint32_t kEvictionsMax = 4;  // of clean copies, for one block
  static constexpr uint32_t kSiblingsMax = 16;  // looked at for the next block

  ReadAhead(CacheDomain& domain, Residency& residency, Promotions& promotions)
      : d_(domain), residency_(residency), promotions_(promotions), queues_(domain.lower.size()) {}

  // The chain below `tip` will probably be asked for.
  void Queue(BlockId tip);
  // These have been asked for, and left below: the first read_ahead_blocks of them, one at least.
  void QueueLeft(std::span<const BlockId> left);
  // This one, wherever it lies, so that it has a copy in DRAM, if that has room.
  void QueueAlone(BlockId id) { (void)QueueOne(id, d_.NowUs()); }
  // Begins what is queued for the tier. REQUIRES: no promotion waits for it.
  void Step(uint32_t tier);

 private:
  struct Queued {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
    uint64_t asked_us = 0;  // when its chain was used
  };

  // Where the chain probably goes on; kBlockNone if nothing below says so.
  BlockId NextInChain(BlockId id) const;
  bool MayRead(BlockId id) const;
  // False if nothing behind it need be queued either.
  bool QueueOne(BlockId id, uint64_t asked_us);
  // Without making anybody wait or write. kNoSpace: room is short.
  Status TakeSlots(const Queued& queued, uint32_t tier);
  // The same while its parent stays, which may be the coldest of all until its child is in.
  Status TakeSlotsBelowParent(const Queued& queued, uint32_t tier);

  CacheDomain& d_;
  Residency& residency_;
  Promotions& promotions_;
  std::vector<std::deque<Queued>> queues_;  // by tier, in order
};

}  // namespace terrace
