// KeyTable: block ids by the hash of their group and key: many groups may have the same keys. Open
// addressing, eight bytes an entry: the hash spares a look at the key where another block's would
// differ; whoever looks something up compares the key itself.
//
// It is as large as its entries need, so that few lie close together in little memory: when it is
// half full it doubles in place, a step with each entry that is added. Homes are in the order of
// hashes, so it goes from the end: entries from `doubled_from_` on lie where a table of twice the
// places has them, those before it still where they were.
//
// THREADING: one thread. LIMITS: blocks_max entries in at least twice as many places, so searches
// are short; kSpillPlaces behind the last home.
#pragma once

#include <cstddef>
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
  explicit KeyTable(const Options& options);

  // The key is uniform for honest clients; the seed makes it so for the others.
  uint32_t HashOf(uint32_t group_index, const BlockKey& key) const {
    uint64_t x = (key.low ^ hash_seed_ ^ (group_index * group_factor_)) * 0x9E3779B97F4A7C15;
    x ^= x >> 32;
    x = (x ^ key.high) * 0xD6E8FEB86659FD93;
    x ^= x >> 32;
    return static_cast<uint32_t>(x);
  }
  // Brings what Find(hash) looks at first nearer, while something else is done, and says where that
  // is. Inlined always: of a function that only prefetches gcc deletes the call.
  [[gnu::always_inline]] uint32_t Prefetch(uint32_t hash) const {
    const uint32_t home = HomeOf(hash);
    __builtin_prefetch(&places_[home]);
    return home;
  }

  // The first id of that hash of which `is_it(id)` is true; kBlockNone if there is none.
  template <typename IsIt>
  BlockId Find(uint32_t hash, const IsIt& is_it) const {
    return FindFrom(HomeOf(hash), hash, is_it);
  }
  // REQUIRES: Prefetch(hash) said `home`, and nothing was added or removed since.
  template <typename IsIt>
  BlockId FindFrom(uint32_t home, uint32_t hash, const IsIt& is_it) const {
    for (uint32_t at = home; places_[at].id_plus_1 != 0; ++at) {
      if (places_[at].hash == hash && is_it(places_[at].id_plus_1 - 1)) {
        return places_[at].id_plus_1 - 1;
      }
    }
    return kBlockNone;
  }
  // False, and nothing is added, if hashes crowd at the end of the table: that takes somebody who
  // knows the seed.
  bool Add(uint32_t hash, BlockId id) {
    if (entry_count_ >= doubles_from_count_) Double();
    if (!Put({.id_plus_1 = id + 1, .hash = hash})) return false;
    ++entry_count_;
    return true;
  }
  // REQUIRES: added under this hash.
  void Remove(uint32_t hash, BlockId id);
  // Removes the blocks of a group with consecutive ids, the last first. REQUIRES: added under their
  // keys.
  void RemoveAll(uint32_t group_index, std::span<const BlockKey> keys, BlockId first);

  // Memory that it will take when it doubles next, named some time before; see MappedArray.
  std::span<std::byte> TakeAhead() {
    const bool is_soon = entry_count_ >= place_count_ / 8 * 3;
    return places_.TakeAhead(size_t{place_count_} * (is_soon ? 2 : 1));
  }
  uint32_t place_count() const { return place_count_; }

 private:
  static constexpr uint32_t kPlacesPerBlock = 2;
  static constexpr uint32_t kFirstPlaces = 4096;  // at most, before it doubles
  static constexpr uint32_t kSpillPlaces = 4096;  // doubling adds less than one to what spills
  static constexpr uint32_t kSpillMargin = 64;
  static constexpr uint32_t kHomesPerStep = 16;
  static constexpr uint32_t kInFlight = 16;  // looks at memory, of which none waits for another
  static constexpr uint64_t kHashEnd = uint64_t{1} << 32;

  struct Place {
    uint32_t id_plus_1;  // 0: empty
    uint32_t hash;
  };
  static_assert(sizeof(Place) == 8);

  // Where hashes belong. A copy of what that depends on stays in registers while places are
  // written, which may be any uint32_t as far as the compiler knows.
  struct Homes {
    uint64_t doubled_from;
    uint64_t place_count;

    // Scaled, not masked: the number of places need not be a power of two.
    uint32_t Of(uint32_t hash) const {
      const int shift = hash < doubled_from ? 32 : 31;
      return static_cast<uint32_t>(hash * place_count >> shift);
    }
  };
  Homes homes() const { return {.doubled_from = doubled_from_, .place_count = place_count_}; }
  uint32_t HomeOf(uint32_t hash) const { return homes().Of(hash); }
  bool Put(const Place& entry) {
    uint32_t at = HomeOf(entry.hash);
    while (places_[at].id_plus_1 != 0) ++at;
    if (at >= places_end_) return false;
    places_[at] = entry;
    return true;
  }
  void CloseGap(const Homes& homes, uint32_t gap);
  void Remove(const Homes& homes, uint32_t hash, BlockId id);
  void Double();
  void PlanDoubling();

  const uint64_t hash_seed_;
  const uint64_t group_factor_;  // as unpredictable
  uint64_t doubled_from_ = kHashEnd;
  uint32_t place_count_;         // before it doubles
  uint32_t doubled_from_home_;   // of place_count_; that of doubled_from_
  uint32_t places_end_;          // no entry is added there or behind
  uint32_t doubles_from_count_;  // entries
  uint32_t entry_count_ = 0;
  const uint32_t place_count_max_;
  MappedArray<Place> places_;  // linear probing
};

}  // namespace terrace
