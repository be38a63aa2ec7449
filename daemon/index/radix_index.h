// RadixIndex: which blocks exist, found by key, and which follows which (RunTree). Keys are
// chained: of a path that is there the index finds some blocks by key and the rest by their edges.
//
// THREADING: one thread. LIMITS: blocks_max; as RunTree.
// INVARIANT: an id is live (found by its key), erased (its number still in use), or free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/index/block_id.h"
#include "daemon/index/id_extents.h"
#include "daemon/index/key_table.h"
#include "daemon/index/mapped_array.h"
#include "daemon/index/run_tree.h"
#include "terrace/block_key.h"

namespace terrace {

// Lookups go this many keys behind their Prefetch.
inline constexpr size_t kPrefetchDistance = 8;
// Memory of arrays by id is populated so many blocks before it is used.
inline constexpr size_t kIdsAhead = 32768;

class RadixIndex {
 public:
  static constexpr uint32_t kRunBlocksMax = RunTree::kRunBlocksMax;
  static constexpr uint64_t kTouchSlackUs = RunTree::kTouchSlackUs;

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

  // Adds a block. `position` counts from the root of its chain. The edge from `parent`, a live
  // block or kBlockNone, is learned if Link() would. kBlockNone when blocks_max ids are in use.
  // REQUIRES: Find() finds nothing.
  BlockId Insert(uint32_t group_index, const BlockKey& key, uint32_t position,
                 BlockId parent = kBlockNone);

  // Learns that `child` follows `parent`. False, and nothing is learned, unless child is a root of
  // the same group one position behind.
  bool Link(BlockId child, BlockId parent) { return runs_.Link(child, parent); }

  // The key is free again and the children are roots; the id stays taken until Recycle. O(1),
  // however many children there are.
  void Erase(BlockId id);
  // REQUIRES: erased.
  void Recycle(BlockId id);
  // Erases and recycles the last blocks of a run: as one by one, tail first, at a fraction of the
  // cost. What will be asked about `next` meanwhile comes nearer. REQUIRES: live, not pinned, the
  // last one without a child; all of one run.
  void EraseTail(BlockRange tail, BlockId next = kBlockNone);

  // Every block of the range has one more pin, or one less; erased ones keep theirs. What a pin
  // means is the caller's business. REQUIRES: ids in use; for Unpin pins on all of them.
  void Pin(BlockRange range) { runs_.Pin(range); }
  void Unpin(BlockRange range) { runs_.Unpin(range); }
  // The range was used, and with it what comes before it in its run. A run may say up to
  // kTouchSlackUs too late a time of a block.
  void Touch(BlockRange range, uint64_t now_us) { runs_.Touch(range, now_us); }
  // REQUIRES for these: an id in use.
  const BlockKey& key(BlockId id) const { return keys_[id]; }
  uint32_t pin_count(BlockId id) const { return runs_.RunAt(id).pin_count; }
  uint64_t touched_us(BlockId id) const { return runs_.RunAt(id).touched_us; }

  Node node(BlockId id) const {
    if (runs_.IsFree(id)) return {};
    const RunTree::Run& run = runs_.RunAt(id);
    const bool is_first = id == run.first;
    const bool is_last = id == run.last();
    return {.key = keys_[id],
            .group_index = runs_.group_index(id),
            .position = run.position + (id - run.first),
            .parent = is_first ? runs_.LastAbove(run) : id - 1,
            .first_child = !is_last ? id + 1 : runs_.FirstOf(run.first_child),
            .next_sibling = is_first ? runs_.FirstOf(run.next_sibling) : kBlockNone,
            .child_count = is_last ? run.child_count : 1,
            .is_live = runs_.IsLive(id)};
  }
  // The newest block of a group without a known parent; next_sibling leads to the others.
  BlockId first_root(uint32_t group_index) const {
    return runs_.FirstOf(runs_.group(group_index).first_root);
  }
  // Ids below this have been in use.
  uint32_t id_count() const { return ids_.id_count(); }

  // The edges, and how many blocks there are.
  const RunTree& runs() const { return runs_; }

  // Memory of blocks to come, named some time before; see MappedArray.
  std::span<std::byte> TakeAhead();

  void CheckInvariants() const;

 private:
  static constexpr uint32_t kKeysPerLine = 64 / sizeof(BlockKey);
  static constexpr uint32_t kTailKeys = 16;
  class PathSearch;

  // Its place, and its key and the ones before.
  void PrefetchTail(BlockId id) const {
    runs_.PrefetchPlace(id);
    for (uint32_t i = 0; i < kTailKeys; i += kKeysPerLine) {
      if (i <= id) __builtin_prefetch(&keys_[id - i]);
    }
  }
  // REQUIRES for false to mean absent: the id is found under this key's hash.
  bool IsBlock(BlockId id, uint32_t group_index, const BlockKey& key) const {
    return keys_[id] == key && runs_.group_index(id) == group_index;
  }
  BlockId FindHashed(uint32_t group_index, const BlockKey& key, uint32_t hash) const {
    return table_.Find(hash, [&](BlockId id) { return IsBlock(id, group_index, key); });
  }

  KeyTable table_;
  MappedArray<BlockKey> keys_;  // by id
  IdExtents ids_;
  RunTree runs_;
};

}  // namespace terrace
