// TreeWalks: cursors over the trees of a RadixIndex that survive what happens between two turns. A
// walk stands on a block; when that block is erased the walk steps on, so nothing is visited twice
// and what stays linked is not missed.
//
// THREADING: one thread. LIMITS: kWalksMax walks; a new one takes the place of the longest unused.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/index/radix_index.h"

namespace terrace {

enum class WalkOrder : uint8_t { kParentsFirst, kChildrenFirst };

// What a walk covers: everything below `roots` if there are any, else all of the groups.
struct WalkScope {
  struct Root {
    uint32_t group_index = 0;
    BlockKey key;
  };
  WalkOrder order = WalkOrder::kParentsFirst;
  std::vector<Root> roots;
  uint32_t group_first = 0;
  uint32_t group_end = 0;
};

class TreeWalks {
 public:
  static constexpr uint32_t kWalksMax = 32;
  using IsPast = std::function<bool(BlockId)>;

  explicit TreeWalks(const RadixIndex& index) : index_(index) {}

  // A cursor; never 0.
  uint64_t Open(WalkScope scope);
  bool IsOpen(uint64_t cursor) const;
  void Close(uint64_t cursor);

  // The next block, or kBlockNone with *is_done: false if the budget ran out first.
  // A step costs 1; there may be several to a block. With children first a block that `is_past` is
  // passed over, and what is below it; it is asked before that. REQUIRES: IsOpen(cursor).
  BlockId Next(uint64_t cursor, uint32_t* budget, bool* is_done, const IsPast& is_past = {});

  // Before the block is erased from the index.
  void OnErase(BlockId id);

 private:
  enum class Phase : uint8_t { kDown, kVisit, kOn, kNextTree };
  struct Walk {
    bool is_used = false;
    uint32_t stamp = 0;
    uint64_t used_at = 0;
    WalkScope scope;
    uint32_t next_root = 0;
    uint32_t group_index = 0;
    BlockId at = kBlockNone;
    BlockId limit = kBlockNone;  // the root whose subtree is walked; kBlockNone: all of a group
    Phase phase = Phase::kNextTree;
  };

  uint32_t PlaceOf(uint64_t cursor) const;  // kWalksMax: it is not open
  bool NextTree(Walk* walk);
  void MoveOn(Walk* walk) const;

  const RadixIndex& index_;
  std::array<Walk, kWalksMax> walks_;
  uint64_t use_count_ = 0;
  uint32_t stamp_count_ = 0;
  uint32_t open_count_ = 0;
};

}  // namespace terrace
