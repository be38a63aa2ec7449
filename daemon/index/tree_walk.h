// TreeWalks: cursors over the trees of a RadixIndex that survive what happens between two turns. A
// walk stands on a block; when that block is erased the walk steps on, so nothing is visited twice
// and what stays linked is not missed.
//
// THREADING: one thread. LIMITS: kWalksMax walks of cursors that somebody may come back to; a new
// one takes the place of the longest unused. Those of operations are as many as there are
// operations, and stay until they are closed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/index/radix_index.h"

namespace terrace {

enum class WalkOrder : uint8_t { kParentsFirst, kChildrenFirst };

// What a walk covers: everything below `roots`, and then all of the groups, or of these what
// `below` says.
struct WalkScope {
  struct Root {
    uint32_t group_index = 0;
    BlockKey key;
  };
  WalkOrder order = WalkOrder::kParentsFirst;
  std::vector<Root> roots;
  uint32_t group_first = 0;
  uint32_t group_end = 0;
  // Of each of the groups, if it is not empty: its trees whose root lies deeper than that. Such a
  // root has lost its parent, and may continue any key that lies less deep. Children first only.
  std::vector<uint32_t> below;
  // Blocks come to lie where the walk has been: children of one that goes become roots, and a root
  // goes under a parent that is back. A walk that is to leave none out begins again then.
  bool goes_again = false;
};

enum class WalkUse : uint8_t { kCursor, kOperation };

class TreeWalks {
 public:
  static constexpr uint32_t kWalksMax = 32;
  static constexpr uint32_t kPassesMax = 64;
  using IsPast = std::function<bool(BlockId)>;

  explicit TreeWalks(const RadixIndex& index) : index_(index), walks_(kWalksMax) {}

  // A cursor; never 0.
  uint64_t Open(WalkScope scope, WalkUse use = WalkUse::kCursor);
  bool IsOpen(uint64_t cursor) const;
  void Close(uint64_t cursor);

  // The next block, or kBlockNone with *is_done: false if the budget ran out first.
  // A step costs 1; there may be several to a block. With children first a block that `is_past` is
  // passed over, and what is below it; it is asked before that. REQUIRES: IsOpen(cursor).
  BlockId Next(uint64_t cursor, uint32_t* budget, bool* is_done, const IsPast& is_past = {});

  // How often it has begun again. REQUIRES: IsOpen(cursor).
  uint32_t passes(uint64_t cursor) const { return walks_[PlaceOf(cursor)].pass_count; }
  // After the end: kPassesMax were not enough.
  bool has_left_out(uint64_t cursor) const { return walks_[PlaceOf(cursor)].is_shaken; }

  // Before the block is erased from the index.
  void OnErase(BlockId id);
  // A root has gone under a parent.
  void OnLink() { Shake(); }

 private:
  enum class Phase : uint8_t { kDown, kVisit, kOn, kNextTree };
  struct Walk {
    bool is_used = false;
    uint32_t stamp = 0;
    uint64_t used_at = 0;
    WalkScope scope;
    uint32_t next_root = 0;
    uint32_t pass_count = 0;
    bool is_shaken = false;  // since the pass began
    uint32_t group_index = 0;
    BlockId at = kBlockNone;
    BlockId limit = kBlockNone;  // the root whose subtree is walked; kBlockNone: all of a group
    Phase phase = Phase::kNextTree;
  };

  uint32_t PlaceOf(uint64_t cursor) const;  // walks_.size(): it is not open
  uint32_t PlaceFor(WalkUse use);
  bool NextTree(Walk* walk);
  bool BeginAgain(Walk* walk) const;
  void Shake();
  bool IsLeftOut(const Walk& walk) const;
  void MoveOn(Walk* walk) const;

  const RadixIndex& index_;
  std::vector<Walk> walks_;  // kWalksMax of cursors, then those of operations
  uint64_t use_count_ = 0;
  uint32_t stamp_count_ = 0;
  uint32_t open_count_ = 0;
};

}  // namespace terrace
