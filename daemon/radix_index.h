// RadixIndex: which blocks exist, found by key, and which follows which. Keys are chained by their
// derivation, so equality at one position proves the whole prefix and a lookup needs no walk; the
// edges, learned when blocks are stored, say what becomes useless without what.
//
// Along an edge the position grows by exactly one, so edges never close a cycle, whatever clients
// say.
//
// THREADING: one thread. LIMITS: blocks_max.
// INVARIANT: an id is live (found by its key), erased (its number still in use), or free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/block.h"
#include "daemon/chunked_array.h"
#include "terrace/block_key.h"

namespace terrace {

class RadixIndex {
 public:
  struct Options {
    uint32_t blocks_max = 0;  // > 0
    uint64_t hash_seed = 0;   // unpredictable, so that no client can aim at one bucket
  };
  struct Node {
    BlockKey key;
    uint32_t group_index = 0;
    uint32_t position = 0;  // in blocks from the root of its chain
    BlockId parent = kBlockNone;
    BlockId first_child = kBlockNone;  // the one that came last
    BlockId previous_sibling = kBlockNone;
    BlockId next_sibling = kBlockNone;
    uint32_t child_count = 0;
    bool is_live = false;
  };

  explicit RadixIndex(const Options& options);

  // kBlockNone if the group has no such block.
  BlockId Find(uint32_t group_index, const BlockKey& key) const;
  // Find(), for the key that follows the block `previous` in a path: no search where their ids
  // follow each other too, as those of a prompt stored at once do.
  BlockId FindNext(uint32_t group_index, const BlockKey& key, BlockId previous) const {
    if (const BlockId guess = previous + 1; guess < id_count_) {
      const Node& node = nodes_[guess];
      if (node.key == key && node.group_index == group_index && node.is_live) return guess;
    }
    return Find(group_index, key);
  }
  // Brings what Find(key) will look at first nearer, while something else is done.
  void Prefetch(const BlockKey& key) const {
    __builtin_prefetch(&buckets_[HashOf(key) & bucket_mask_]);
  }
  // Appends the blocks of all groups that have this key: one at most, unless clients invent keys.
  void FindAll(const BlockKey& key, std::vector<BlockId>* ids) const;

  // Adds a block without an edge: a root. `position` counts from the root of its chain.
  // kBlockNone when blocks_max ids are in use. REQUIRES: Find() finds nothing.
  BlockId Insert(uint32_t group_index, const BlockKey& key, uint32_t position);

  // Learns that `child` follows `parent`. False, and nothing is learned, unless child is a root of
  // the same group one position behind.
  bool Link(BlockId child, BlockId parent);

  // The key is free again and the children are roots; the id stays taken until Recycle.
  void Erase(BlockId id);
  // REQUIRES: erased.
  void Recycle(BlockId id);

  const Node& node(BlockId id) const { return nodes_[id]; }
  // Blocks of a group without a known parent, linked by next_sibling; the newest first.
  BlockId first_root(uint32_t group_index) const;
  uint32_t group_block_count(uint32_t group_index) const;
  uint32_t live_count() const { return live_count_; }
  // Ids below this have been in use.
  uint32_t id_count() const { return id_count_; }

  void CheckInvariants() const;

 private:
  struct Group {
    BlockId first_root = kBlockNone;
    uint32_t block_count = 0;
  };
  // The hash in the bucket spares a look at the node, where another key's would differ.
  struct Bucket {
    uint32_t id_plus_1 = 0;  // 0: empty
    uint32_t hash = 0;       // home: hash & bucket_mask_
  };

  uint32_t HashOf(const BlockKey& key) const;
  void EraseBucket(uint32_t bucket);
  void LinkInto(BlockId id, BlockId parent);
  void Unlink(BlockId id);

  const Options options_;
  uint32_t bucket_mask_;
  struct FreeDeleter {
    void operator()(Bucket* buckets) const;
  };
  std::unique_ptr<Bucket[], FreeDeleter> buckets_;  // linear probing; at most half full
  ChunkedArray<Node> nodes_;
  std::vector<BlockId> free_ids_;
  std::vector<Group> groups_;
  uint32_t id_count_ = 0;
  uint32_t live_count_ = 0;
};

}  // namespace terrace
