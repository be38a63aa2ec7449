// RunTree: which block follows which. The edges, learned when blocks are stored, say what becomes
// useless without what.
//
// It is a radix tree whose nodes are *runs*: blocks with consecutive ids and positions, each the
// only child of the one before. Runs are cut where chains part and grow where blocks are appended,
// so that a path is a few ranges of ids and its edges cost nothing but the runs they join. Pins and
// the time of the last use are a run's, too, and it is cut where they differ: O(1) a run.
//
// Along an edge the position grows by exactly one, so edges never close a cycle, whatever clients
// say.
//
// THREADING: one thread. LIMITS: blocks_max ids; kRunBlocksMax bounds what cutting a run costs.
// INVARIANT: an id is live (in a run of the tree), erased (in a run of its own, outside), or free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/index/block_id.h"
#include "daemon/index/chunked_array.h"
#include "daemon/index/mapped_array.h"

namespace terrace {

using RunId = uint32_t;
inline constexpr RunId kRunNone = 0;

class RunTree {
 public:
  static constexpr uint32_t kRunBlocksMax = 8192;
  static constexpr uint64_t kTouchSlackUs = 1000000;

  // A node of the tree, or an erased block. Its blocks have consecutive ids and positions. Or what
  // is left of one that was erased with its children: they are roots, and still name it their
  // parent, so that nobody has to tell each of them; it has no block, and goes with the last one.
  // Siblings are a list; the first one's previous is the last.
  struct Run {
    BlockId first = kBlockNone;
    uint32_t block_count = 0;
    uint32_t position = 0;    // of the first block
    RunId parent = kRunNone;  // whose last block the first one follows; see ParentOf
    RunId first_child = kRunNone;
    RunId previous_sibling = kRunNone;
    RunId next_sibling = kRunNone;
    uint32_t child_count = 0;
    uint64_t touched_us = 0;
    uint32_t pin_count = 0;  // of each block

    BlockId last() const { return first + block_count - 1; }
  };
  static_assert(sizeof(Run) == 48);

  // The live blocks of a group. Its roots, which have no known parent, are siblings of the first
  // one, the newest.
  struct Group {
    RunId first_root = kRunNone;
    uint32_t block_count = 0;
  };

  explicit RunTree(uint32_t blocks_max) : places_(blocks_max) {}

  bool IsFree(BlockId id) const { return places_[id].run == kRunNone; }
  bool IsLive(BlockId id) const { return (places_[id].run & kErasedBit) == 0 && !IsFree(id); }
  // REQUIRES for these: an id that is not free.
  uint32_t group_index(BlockId id) const { return places_[id].group_index; }
  const Run& RunAt(BlockId id) const { return runs_[RunOf(id)]; }
  // Whose last block the first one of the run follows. Null for roots, orphans among them.
  const Run* Above(const Run& run) const {
    const RunId parent = ParentOf(run);
    return parent == kRunNone ? nullptr : &runs_[parent];
  }
  // Its last block. What orphans name their parent has no block, and says so by itself.
  BlockId LastAbove(const Run& run) const {
    return run.parent == kRunNone ? kBlockNone : runs_[run.parent].last();
  }
  BlockId FirstOf(RunId run) const { return run == kRunNone ? kBlockNone : runs_[run].first; }
  void PrefetchPlace(BlockId id) const { __builtin_prefetch(&places_[id]); }
  void PrefetchRun(BlockId id) const {
    const Run& run = RunAt(id);
    __builtin_prefetch(&run);
    __builtin_prefetch(&run.pin_count);
  }

  // A block, root of its group unless Link would give it this parent. REQUIRES: a free id; the
  // parent is live or kBlockNone.
  void Add(BlockId id, uint32_t group_index, uint32_t position, BlockId parent) {
    if (!Append(id, group_index, position, parent)) Begin(id, group_index, position, parent);
  }
  // False, and nothing is learned, unless child is a root of the same group one position behind.
  // REQUIRES: both are live.
  bool Link(BlockId child, BlockId parent);
  // The block is out of the tree, its children are roots. O(1), however many there are.
  // REQUIRES: live.
  void Erase(BlockId id);
  // The id is free. REQUIRES: erased, not pinned.
  void Recycle(BlockId id);
  // Erases and recycles the last blocks of a run. REQUIRES: live, not pinned, the last one without
  // a child; all of one run.
  void EraseTail(BlockRange tail);

  // As RadixIndex says.
  void Pin(BlockRange range);
  void Unpin(BlockRange range);
  void Touch(BlockRange range, uint64_t now_us);

  // Nothing of a group that never had a block.
  Group group(uint32_t group_index) const {
    return group_index < groups_.size() ? groups_[group_index] : Group();
  }
  // Groups below this have had blocks, or others of a higher index.
  uint32_t group_count() const { return static_cast<uint32_t>(groups_.size()); }
  uint32_t live_count() const { return live_count_; }
  uint32_t pinned_count() const { return pinned_count_; }
  uint32_t run_count() const { return run_count_; }

  // As MappedArray says, of so many ids.
  std::span<std::byte> TakeAhead(size_t id_count) { return places_.TakeAhead(id_count); }

  // Of all ids below `id_count`, of which so many are not free.
  void CheckInvariants(uint32_t id_count, uint32_t used_count) const;

 private:
  static constexpr uint32_t kErasedBit = uint32_t{1} << 31;

  // Of a block. All zero: the id is free.
  struct Place {
    uint32_t run;  // with kErasedBit
    uint32_t group_index;
  };
  RunId RunOf(BlockId id) const { return places_[id].run & ~kErasedBit; }
  RunId ParentOf(const Run& run) const {
    if (run.parent == kRunNone || runs_[run.parent].first == kBlockNone) return kRunNone;
    return run.parent;
  }
  // Lengthens its parent's run, as most blocks do. False if it would be in a run of its own.
  bool Append(BlockId id, uint32_t group_index, uint32_t position, BlockId parent) {
    if (parent == kBlockNone || id != parent + 1 || places_[parent].group_index != group_index) {
      return false;
    }
    const RunId at = places_[parent].run;
    Run& run = runs_[at];
    if (run.last() != parent || run.child_count > 0 || run.pin_count > 0 ||
        run.block_count == kRunBlocksMax || run.position + run.block_count != position) {
      return false;
    }
    ++run.block_count;
    ++groups_[group_index].block_count;
    ++live_count_;
    places_[id] = {.run = at, .group_index = group_index};
    return true;
  }
  // A run of its own.
  void Begin(BlockId id, uint32_t group_index, uint32_t position, BlockId parent);
  // The block's run, cut behind it.
  RunId RunUpTo(BlockId id);
  // By group and position the run's first block is the next one.
  bool MayFollow(RunId below, BlockId parent) const;
  RunId NewRun(const Run& run);
  void FreeRun(RunId run);
  void Renumber(RunId run, BlockId first, uint32_t block_count);
  RunId& HeadOfSiblings(const Run& run);
  void LinkInto(RunId run, RunId parent);
  void Unlink(RunId run);
  RunId OrphanChildren(RunId at);
  // `to` takes the place of `from` among its siblings.
  void Replace(RunId from, RunId to);
  void AdoptChildren(RunId from, RunId to);
  // Cuts a run before `id`; what begins there becomes its child.
  void CutBefore(BlockId id);
  // Makes one run of `above` and its only child if their ids, pins and times allow it.
  bool JoinWithChild(RunId above) {
    const Run& upper = runs_[above];
    if (upper.child_count != 1) return false;
    const Run& lower = runs_[upper.first_child];
    if (lower.first != upper.last() + 1 || lower.pin_count != upper.pin_count ||
        lower.touched_us + kTouchSlackUs < upper.touched_us ||
        upper.block_count + lower.block_count > kRunBlocksMax) {
      return false;
    }
    Join(above, upper.first_child);
    return true;
  }
  void Join(RunId above, RunId below);
  // Cuts runs so that the range is some of them, and visits these.
  template <typename Visit>
  void ForEachRun(BlockRange range, const Visit& visit);
  void JoinAlong(BlockRange range);
  void CheckRun(RunId run) const;
  void CheckOrphans(uint32_t id_count, uint32_t run_count) const;
  void CheckRoots(uint32_t id_count) const;

  MappedArray<Place> places_;  // by id
  ChunkedArray<Run> runs_;
  std::vector<RunId> free_runs_;
  std::vector<Group> groups_;
  uint32_t run_count_ = 0;  // in use
  RunId run_id_count_ = 1;  // ever in use; 0 is kRunNone
  uint32_t live_count_ = 0;
  uint32_t pinned_count_ = 0;
};

}  // namespace terrace
