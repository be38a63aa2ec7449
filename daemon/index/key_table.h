// KeyTable: block ids by the hash of their group and key: many groups may have the same keys. Open
// addressing, eight bytes an entry: the hash spares a look at the key where another block's would
// differ; whoever looks something up compares the key itself.
//
// THREADING: one thread. LIMITS: blocks_max entries; twice as many places, so searches are short.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/index/block_id.h"
#include "daemon/index/mapped_array.h"
#include "terrace/block_key.h"

namespace terrace {

class KeyTable {
 public:
  struct Options {
    uint32_t blocks_max = 0;
    uint64_t hash_seed = 0;  // unpredictable, so that no client can aim at one place
  };
  explicit KeyTable(const Options& options)
      : hash_seed_(options.hash_seed),
        group_factor_((options.hash_seed * 0xD6E8FEB86659FD93) | 1),
        place_count_(options.blocks_max * kPlacesPerBlock),
        places_(place_count_) {}

  // The key is uniform for honest clients; the seed makes it so for the others.
  uint32_t HashOf(uint32_t group_index, const BlockKey& key) const {
    uint64_t x = (key.low ^ hash_seed_ ^ (group_index * group_factor_)) * 0x9E3779B97F4A7C15;
    x ^= x >> 32;
    x = (x ^ key.high) * 0xD6E8FEB86659FD93;
    x ^= x >> 32;
    return static_cast<uint32_t>(x);
  }
  // Brings what Find(hash) looks at first nearer, while something else is done. Inlined always: of
  // a function that only prefetches gcc deletes the call.
  [[gnu::always_inline]] void Prefetch(uint32_t hash) const {
    __builtin_prefetch(&places_[HomeOf(hash)]);
  }

  // The first id of that hash of which `is_it(id)` is true; kBlockNone if there is none.
  template <typename IsIt>
  BlockId Find(uint32_t hash, const IsIt& is_it) const {
    for (uint32_t at = HomeOf(hash); places_[at].id_plus_1 != 0; at = Next(at)) {
      if (places_[at].hash == hash && is_it(places_[at].id_plus_1 - 1)) {
        return places_[at].id_plus_1 - 1;
      }
    }
    return kBlockNone;
  }
  void Add(uint32_t hash, BlockId id) {
    uint32_t at = HomeOf(hash);
    while (places_[at].id_plus_1 != 0) at = Next(at);
    places_[at] = {.id_plus_1 = id + 1, .hash = hash};
  }
  // REQUIRES: added under this hash.
  void Remove(uint32_t hash, BlockId id);
  // Removes the blocks of a group with consecutive ids, the last first. REQUIRES: added under their
  // keys.
  void RemoveAll(uint32_t group_index, std::span<const BlockKey> keys, BlockId first);

 private:
  static constexpr uint32_t kPlacesPerBlock = 2;
  static constexpr uint32_t kPlacesPerLine = 8;
  static constexpr uint32_t kInFlight = 16;  // looks at memory, of which none waits for another

  struct Place {
    uint32_t id_plus_1;  // 0: empty
    uint32_t hash;
  };
  static_assert(sizeof(Place) == 8);

  // Scaled, not masked: the number of places need not be a power of two.
  uint32_t HomeOf(uint32_t hash) const {
    return static_cast<uint32_t>(uint64_t{hash} * place_count_ >> 32);
  }
  uint32_t Next(uint32_t at) const { return at + 1 == place_count_ ? 0 : at + 1; }
  uint32_t Distance(uint32_t from, uint32_t to) const {
    return to >= from ? to - from : to + place_count_ - from;
  }

  const uint64_t hash_seed_;
  const uint64_t group_factor_;  // as unpredictable
  const uint32_t place_count_;
  MappedArray<Place> places_;  // linear probing
};

}  // namespace terrace
