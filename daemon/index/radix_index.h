// RadixIndex: which blocks exist, found by key, and which follows which. The edges, learned when
// blocks are stored, say what becomes useless without what.
//
// It is a radix tree whose nodes are *runs*: blocks with consecutive ids and positions, each the
// only child of the one before. Runs are cut where chains part and grow where blocks are appended,
// so that a path is a few ranges of ids and its edges cost nothing but the runs they join. Pins and
// the time of the last use are a run's, too, and it is cut where they differ: O(1) a run.
//
// Along an edge the position grows by exactly one, so edges never close a cycle, whatever clients
// say.
//
// THREADING: one thread. LIMITS: blocks_max; kRunBlocksMax bounds what cutting a run costs.
// INVARIANT: an id is live (found by its key), erased (its number still in use), or free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/index/block_id.h"
#include "daemon/index/chunked_array.h"
#include "daemon/index/id_extents.h"
#include "daemon/index/key_table.h"
#include "daemon/index/mapped_array.h"
#include "terrace/block_key.h"

namespace terrace {

// Lookups go this many keys behind their Prefetch.
inline constexpr size_t kPrefetchDistance = 8;

class RadixIndex {
 public:
  static constexpr uint32_t kRunBlocksMax = 8192;
  static constexpr uint64_t kTouchSlackUs = 1000000;

  using Options = KeyTable::Options;  // blocks_max: 1 to 2^30
  struct Node {
    BlockKey key;
    uint32_t group_index = 0;
    uint32_t position = 0;  // in blocks from the root of its chain
    BlockId parent = kBlockNone;
    BlockId first_child = kBlockNone;  // the one that came last
    BlockId next_sibling = kBlockNone;
    uint32_t child_count = 0;
    bool is_live = false;
  };
  // What an answer to Match() rests on. kEveryKey: every key was compared. kChain: keys are chained
  // by their derivation, so one that is equal proves those before it as far as edges lead there.
  enum class Proof : uint8_t { kEveryKey, kChain };

  explicit RadixIndex(const Options& options);

  // kBlockNone if the group has no such block.
  BlockId Find(uint32_t group_index, const BlockKey& key) const {
    return FindHashed(group_index, key, table_.HashOf(group_index, key));
  }
  // How many of the leading keys the group has, and their blocks in order. O(runs on the path), and
  // with kEveryKey a comparison a key. REQUIRES for kChain: `keys` are a chain.
  uint32_t Match(uint32_t group_index, std::span<const BlockKey> keys, Proof proof,
                 std::vector<BlockRange>* path) const;
  // Brings what Find(key) will look at first nearer, while something else is done.
  [[gnu::always_inline]] void Prefetch(uint32_t group_index, const BlockKey& key) const {
    table_.Prefetch(table_.HashOf(group_index, key));
  }
  // Appends the blocks of all groups that have this key. O(groups ever used).
  void FindAll(const BlockKey& key, std::vector<BlockId>* ids) const;
  uint32_t group_count() const { return static_cast<uint32_t>(groups_.size()); }

  // Adds a block. `position` counts from the root of its chain. The edge from `parent`, a live
  // block or kBlockNone, is learned if Link() would. kBlockNone when blocks_max ids are in use.
  // REQUIRES: Find() finds nothing.
  BlockId Insert(uint32_t group_index, const BlockKey& key, uint32_t position,
                 BlockId parent = kBlockNone);

  // Learns that `child` follows `parent`. False, and nothing is learned, unless child is a root of
  // the same group one position behind.
  bool Link(BlockId child, BlockId parent);

  // The key is free again and the children are roots; the id stays taken until Recycle. O(1),
  // however many children there are.
  void Erase(BlockId id);
  // REQUIRES: erased.
  void Recycle(BlockId id);
  // The block and those before it in its run: each the only child of the one before.
  BlockRange RunUpTo(BlockId id) const {
    const BlockId first = runs_[RunOf(id)].first;
    return {.first = first, .block_count = id - first + 1};
  }
  // Erases and recycles the last blocks of a run: as one by one, tail first, at a fraction of the
  // cost. What will be asked about `next` meanwhile comes nearer. REQUIRES: live, not pinned, the
  // last one without a child; all of one run.
  void EraseTail(BlockRange tail, BlockId next = kBlockNone);

  // Every block of the range has one more pin, or one less; erased ones keep theirs. What a pin
  // means is the caller's business. REQUIRES: ids in use; for Unpin pins on all of them.
  void Pin(BlockRange range);
  void Unpin(BlockRange range);
  // The range was used, and with it what comes before it in its run. A run may say up to
  // kTouchSlackUs too late a time of a block.
  void Touch(BlockRange range, uint64_t now_us);
  // REQUIRES for these: an id in use.
  const BlockKey& key(BlockId id) const { return keys_[id]; }
  BlockId RunEnd(BlockId id) const { return runs_[RunOf(id)].last(); }
  uint32_t pin_count(BlockId id) const { return runs_[RunOf(id)].pin_count; }
  uint64_t touched_us(BlockId id) const { return runs_[RunOf(id)].touched_us; }

  Node node(BlockId id) const {
    if (places_[id].run == kRunNone) return {};
    const Run& run = runs_[RunOf(id)];
    const bool is_first = id == run.first;
    const bool is_last = id == run.last();
    return {.key = keys_[id],
            .group_index = places_[id].group_index,
            .position = run.position + (id - run.first),
            // That of orphans says kBlockNone by itself.
            .parent = !is_first ? id - 1
                                : (run.parent == kRunNone ? kBlockNone : runs_[run.parent].last()),
            .first_child = !is_last ? id + 1 : FirstOf(run.first_child),
            .next_sibling = is_first ? FirstOf(run.next_sibling) : kBlockNone,
            .child_count = is_last ? run.child_count : 1,
            .is_live = IsLive(id)};
  }
  // Blocks of a group without a known parent, linked by next_sibling; the newest first.
  BlockId first_root(uint32_t group_index) const;
  uint32_t group_block_count(uint32_t group_index) const;
  uint32_t live_count() const { return live_count_; }
  uint32_t pinned_count() const { return pinned_count_; }
  // Ids below this have been in use.
  uint32_t id_count() const { return ids_.id_count(); }
  uint32_t run_count() const { return run_count_; }

  void CheckInvariants() const;

 private:
  using RunId = uint32_t;
  static constexpr RunId kRunNone = 0;
  static constexpr uint32_t kErasedBit = uint32_t{1} << 31;
  static constexpr uint32_t kKeysPerLine = 64 / sizeof(BlockKey);
  static constexpr uint32_t kTailKeys = 16;

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
  // Of a block, beside its key. All zero: the id is free.
  struct Place {
    uint32_t run;  // with kErasedBit
    uint32_t group_index;
  };
  struct Group {
    RunId first_root = kRunNone;
    uint32_t block_count = 0;
  };
  class PathSearch;

  bool IsFree(BlockId id) const { return places_[id].run == kRunNone; }
  bool IsLive(BlockId id) const { return (places_[id].run & kErasedBit) == 0 && !IsFree(id); }
  RunId RunOf(BlockId id) const { return places_[id].run & ~kErasedBit; }
  void PrefetchRun(BlockId id) const {
    const Run& run = runs_[RunOf(id)];
    __builtin_prefetch(&run);
    __builtin_prefetch(&run.pin_count);
  }
  // Its place, and its key and the ones before.
  void PrefetchTail(BlockId id) const {
    __builtin_prefetch(&places_[id]);
    for (uint32_t i = 0; i < kTailKeys; i += kKeysPerLine) {
      if (i <= id) __builtin_prefetch(&keys_[id - i]);
    }
  }
  BlockId FirstOf(RunId run) const { return run == kRunNone ? kBlockNone : runs_[run].first; }
  // REQUIRES for false to mean absent: the id is found under this key's hash.
  bool IsBlock(BlockId id, uint32_t group_index, const BlockKey& key) const {
    return keys_[id] == key && places_[id].group_index == group_index;
  }
  BlockId FindHashed(uint32_t group_index, const BlockKey& key, uint32_t hash) const {
    return table_.Find(hash, [&](BlockId id) { return IsBlock(id, group_index, key); });
  }

  // kRunNone for roots, orphans among them.
  RunId ParentOf(const Run& run) const {
    if (run.parent == kRunNone || runs_[run.parent].first == kBlockNone) return kRunNone;
    return run.parent;
  }
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
  bool JoinWithChild(RunId above);
  // Cuts runs so that the range is some of them, and visits these.
  template <typename Visit>
  void ForEachRun(BlockRange range, const Visit& visit);
  void JoinAlong(BlockRange range);
  void CheckRun(RunId run) const;

  KeyTable table_;
  MappedArray<BlockKey> keys_;  // by id
  MappedArray<Place> places_;   // by id
  IdExtents ids_;
  ChunkedArray<Run> runs_;
  std::vector<RunId> free_runs_;
  std::vector<Group> groups_;
  uint32_t run_count_ = 0;  // in use
  RunId run_id_count_ = 1;  // ever in use; 0 is kRunNone
  uint32_t live_count_ = 0;
  uint32_t pinned_count_ = 0;
};

}  // namespace terrace
