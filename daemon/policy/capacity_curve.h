// CapacityCurve: would a use have hit if the tier were smaller or larger? It keeps LRU's order of a
// sample of the blocks used, chosen by a hash of their keys, and answers how many bytes of other
// blocks were used since a block's last use: LRU hits if that fits. (SHARDS: Waldspurger et al.,
// "Efficient MRC Construction with SHARDS", FAST '15.)
//
// Sampling single blocks is sound for prefixes: tail first, a block's hit hangs on nothing but what
// was used since. All blocks are sampled while there is room for them, since few of few would say
// little. When the sample is full every other block leaves it, and weighs twice as much.
//
// THREADING: one thread. LIMITS: kSamplesMax blocks; half a MiB, whatever the tier holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "terrace/block_key.h"

namespace terrace {

class CapacityCurve {
 public:
  static constexpr uint32_t kSamplesMax = 8192;
  static constexpr uint64_t kFar = UINT64_MAX;

  // Distances of `span_bytes` and more are all kFar. REQUIRES: > 0.
  CapacityCurve(uint64_t span_bytes, uint64_t seed);

  bool IsSampled(const BlockKey& key) const { return (HashOf(key) >> 32) % weight_ == 0; }
  // How many blocks a sampled one stands for.
  uint32_t weight() const { return weight_; }
  // Bytes of the blocks used since this one was, itself included; kFar if it was not used, or long
  // ago. REQUIRES: sampled.
  uint64_t DistanceOf(const BlockKey& key) const;
  // It is the block used last. REQUIRES: sampled.
  void Use(const BlockKey& key, uint64_t byte_count);

 private:
  static constexpr uint32_t kStamps = 2 * kSamplesMax;
  static constexpr uint32_t kSlots = 2 * kSamplesMax;
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  struct Entry {
    uint64_t hash = 0;
    uint64_t byte_count = 0;  // 0: nothing has this stamp
  };

  uint64_t HashOf(const BlockKey& key) const;
  uint32_t SlotOf(uint64_t hash) const;  // where its stamp is, or belongs
  void Add(uint32_t stamp, const Entry& entry);
  void Remove(uint32_t stamp);
  void AddBytes(uint32_t stamp, uint64_t byte_count);  // modulo 2^64: may subtract
  uint64_t BytesUpTo(uint32_t stamp) const;
  void Renumber();

  const uint64_t span_bytes_;
  const uint64_t seed_;
  std::vector<Entry> entries_;   // by stamp: higher is later
  std::vector<uint64_t> sums_;   // of entries' bytes: a Fenwick tree
  std::vector<uint32_t> slots_;  // open addressing: stamps by hash
  uint64_t total_bytes_ = 0;
  uint32_t count_ = 0;
  uint32_t weight_ = 1;  // a power of two
  uint32_t next_stamp_ = 0;
  uint32_t oldest_ = 0;  // no entry before it
};

}  // namespace terrace
