// BatchDrops: copies in a tier that are given up together, because the tier is short of places of
// one shape and the room that could be had is held by places of another, or because its room goes
// back to another domain: it names whose.
//
// What goes back goes whoever uses it: nothing is written below it meanwhile, so that a block with
// ever new children leaves, too. A block that would be lost with descendants in DRAM is read into
// DRAM, and leaves the next time; if there was no room, its descendants leave with it. Pins do not
// hold it.
//
// THREADING: store thread. LIMITS: one batch a tier; what goes back is asked for some at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "daemon/residency/evictor.h"

namespace terrace {

class BatchDrops {
 public:
  // Dropped in a turn, over all domains.
  static constexpr uint32_t kPerTurnMax = 64;
  static constexpr uint32_t kTurnBudget = kPerTurnMax * SubtreeWalk::kDropCost;

  BatchDrops(CacheDomain& domain, Evictor& evictor)
      : d_(domain), evictor_(evictor), batches_(domain.lower.size()) {}

  // `tier` has no place for a local member of the block. True if others are being given up for it.
  bool Begin(BlockId id, uint32_t tier, uint32_t local_index);
  // Drops some, as far as `*budget` (SubtreeWalk's) allows. True if that was the end of a batch:
  // there may be room. `writes_in_flight` to the tier are waited for, until the next Tick at most.
  bool Step(uint32_t tier, uint32_t writes_in_flight, uint32_t* budget);
  bool has_work(uint32_t tier) const { return batches_[tier].has_work(); }
  // Nothing is to be written to the tier.
  bool is_giving(uint32_t tier) const { return batches_[tier].is_giving; }
  // Blocks that might go back, had they a copy in DRAM. Those since the last call.
  std::vector<BlockId> TakeHeld() { return std::exchange(held_, {}); }
  // A batch that dropped nothing is not tried again before the next Tick. What goes back to another
  // domain is one, until it is gone.
  void Tick(uint32_t tier);

 private:
  struct Drop {
    SubtreeWalk walk;
    bool is_in_dram = false;  // of what is in the way of the next
  };
  struct Batch {
    std::deque<Drop> drops;
    uint32_t pass_count = 0;   // of giving, one after the other
    bool has_dropped = false;  // any of them
    bool may_begin = true;
    bool goes_again = false;  // at the next tick: what stayed was only being scrubbed
    bool is_giving = false;   // to another domain
    bool has_more = false;    // to give, beside `drops`
    bool is_waiting = false;  // for writes in flight

    bool has_work() const { return !drops.empty() || has_more; }
  };
  void Fill(Batch& batch, std::span<const uint32_t> owners);
  // The next that go back.
  void Refill(uint32_t tier);
  bool IsThere(const Drop& drop, uint32_t tier) const;
  // Of a block that would leave but for its descendants in DRAM alone: its first child there.
  BlockId ChildInTheWay(BlockId id, uint32_t tier) const;

  CacheDomain& d_;
  Evictor& evictor_;
  std::vector<Batch> batches_;  // by tier
  std::vector<BlockId> held_;
};

}  // namespace terrace
