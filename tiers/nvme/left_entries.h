// LeftEntries: used entries that a start put out of use and kept, since nobody knew their groups or
// had their keys: where each lies, so that an erasure finds it. Such an erasure goes the way of one
// of a served block: the table, the catalog, a sync.
//
// Of what continues a key memory knows no more than how deep it lies: all that lies deeper in the
// key's group goes with it.
//
// THREADING: as the tier. OWNERSHIP: its neighbours outlive it.
// LIMITS: 40 bytes an entry that is left, less than what a block costs that is served.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tiers/left_blocks.h"
#include "tiers/nvme/slab_set.h"

namespace terrace {

class EntryWriter;
class ErasureLog;
class ShapeClasses;

class LeftEntries {
 public:
  static constexpr uint32_t kLooksPerErasure = 16;  // passing one by costs so much less
  struct Neighbours {
    SlabSet& slabs;
    ShapeClasses& classes;
    EntryWriter& entries;
    ErasureLog& erasures;
  };
  explicit LeftEntries(const Neighbours& neighbours) : with_(neighbours) {}

  // At start: the entry's slot is kQuarantined, and the entry stays. Then, once, EndRestore.
  void Add(const NvmeSlab& slab, const SlabEntry& entry, bool is_locked);
  void EndRestore();

  uint64_t count() const { return count_; }
  uint64_t locked_bytes() const { return locked_bytes_; }        // of slots, their keys not here
  uint64_t ungrouped_bytes() const { return ungrouped_bytes_; }  // of the others

  // As LeftBlocks says.
  void Mark(const std::optional<GroupId>& group, uint64_t position);
  std::optional<uint64_t> MarkBelow(const std::optional<GroupId>& group, const BlockKey& key);
  void EraseKey(const std::optional<GroupId>& group, const BlockKey& key, UnindexedTaken* taken);
  bool EraseMarked(uint32_t* budget, UnindexedTaken* taken);

 private:
  struct Entry {
    BlockKey key;
    uint32_t group = 0;  // place in groups_
    uint32_t position = 0;
    uint32_t slab = 0;
    uint32_t slot = 0;
    uint32_t generation = 0;
    bool is_locked = false;
    bool is_gone = false;

    bool IsOfOneBlock(const Entry& other) const { return group == other.group && key == other.key; }
  };
  struct LeftGroup {
    GroupId id;
    uint64_t erased_from = UINT64_MAX;  // a position: from there on they are marked
  };

  // Calls visit(entry) for each that is left under the key.
  template <typename Visit>
  void ForEachOf(const std::optional<GroupId>& group, const BlockKey& key, const Visit& visit);
  void MarkOne(LeftGroup* group, uint64_t position);
  void Erase(Entry* entry, UnindexedTaken* taken);

  const Neighbours with_;
  std::vector<Entry> left_;  // by key
  std::vector<LeftGroup> groups_;
  std::map<GroupId, uint32_t> places_;            // of groups_
  std::unordered_map<uint32_t, SlabUuid> slabs_;  // that entries lie in
  uint64_t count_ = 0;
  uint64_t locked_bytes_ = 0;
  uint64_t ungrouped_bytes_ = 0;
  size_t next_ = 0;     // of left_, to be looked at
  size_t to_look_ = 0;  // so many, since something was marked last
};

}  // namespace terrace
