// SubtreeWalk: where a walk stands that takes a subtree's copies out of one tier, leaves first,
// some blocks at a time. It goes on from the copy dropped last, so that a chain costs a visit a
// block however often the budget ends; what others have erased meanwhile sends it back to the top.
//
// THREADING: store thread.
#pragma once

#include <cstdint>

#include "daemon/block/block.h"

namespace terrace {

enum class WalkEnd : uint8_t {
  kAllGone,
  kHeld,    // something in the subtree may not go now; a part of it may be gone
  kBudget,  // call again
};

struct SubtreeWalk {
  // A block looked at costs 1, a copy that goes so much.
  static constexpr uint32_t kDropCost = 8;

  BlockId top = kBlockNone;
  CommitId top_commit = 0;
  BlockId at = kBlockNone;
  CommitId at_commit = 0;
  BlockId next = kBlockNone;  // child of `at` to look at first; kBlockNone: its first
  BlockId held = kBlockNone;  // of a walk that has ended: the block that may not go now

  bool is_on() const { return top != kBlockNone; }
  void End() { *this = {}; }
};

}  // namespace terrace
