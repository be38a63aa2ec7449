#include "daemon/index/key_table.h"

#include <algorithm>
#include <array>

#include "terrace/check.h"

namespace terrace {
namespace {

// So many places that they are `places` or a few more after some doublings.
uint32_t HalvedTo(uint32_t places, uint32_t places_max) {
  while (places > places_max) places = places / 2 + places % 2;
  return places;
}
uint32_t DoubledTo(uint32_t places, uint32_t places_min) {
  while (places < places_min) places *= 2;
  return places;
}

}  // namespace

KeyTable::KeyTable(const Options& options)
    : hash_seed_(options.hash_seed),
      group_factor_((options.hash_seed * 0xD6E8FEB86659FD93) | 1),
      place_count_(HalvedTo(options.blocks_max * kPlacesPerBlock, kFirstPlaces)),
      place_count_max_(DoubledTo(place_count_, options.blocks_max * kPlacesPerBlock)),
      places_(size_t{place_count_max_} + kSpillPlaces) {
  PlanDoubling();
}

void KeyTable::PlanDoubling() {
  doubled_from_ = kHashEnd;
  doubled_from_home_ = place_count_;
  places_end_ = place_count_ + kSpillPlaces - kSpillMargin;
  doubles_from_count_ = place_count_ < place_count_max_ ? place_count_ / 2 : UINT32_MAX;
}

// A step: the entries of the last homes that have not doubled yet. They lie from there on, before
// an empty place, and among others, which stay. While one is taken out and put where it belongs now
// those that are still to come are found by nobody, and move for nobody: their new home is behind.
void KeyTable::Double() {
  const uint32_t end_home = doubled_from_home_;
  const uint64_t end_hash = doubled_from_;
  if (end_home == place_count_) {
    doubles_from_count_ = 0;  // on and on, until it is done
    places_end_ = 2 * place_count_ + kSpillPlaces - kSpillMargin;
  }
  doubled_from_home_ = end_home - std::min(end_home, kHomesPerStep);
  doubled_from_ = ((uint64_t{doubled_from_home_} << 32) + place_count_ - 1) / place_count_;
  uint32_t end = end_home;
  while (places_[end].id_plus_1 != 0) ++end;
  for (uint32_t at = end; at-- > doubled_from_home_;) {
    const Place entry = places_[at];
    if (entry.id_plus_1 == 0 || entry.hash < doubled_from_ || entry.hash >= end_hash) continue;
    CloseGap(homes(), at);
    TERRACE_CHECK(Put(entry), "a table of twice the places has room for the same entries");
  }
  if (doubled_from_home_ > 0) return;
  place_count_ *= 2;
  PlanDoubling();
}

// Whatever behind it belongs at it or before it moves up, so that no search ends early.
inline void KeyTable::CloseGap(const Homes& homes, uint32_t gap) {
  Place* const places = &places_[0];
  for (uint32_t next = gap + 1; places[next].id_plus_1 != 0; ++next) {
    if (homes.Of(places[next].hash) > gap) continue;
    places[gap] = places[next];
    gap = next;
  }
  places[gap] = {};
}

inline void KeyTable::Remove(const Homes& homes, uint32_t hash, BlockId id) {
  uint32_t at = homes.Of(hash);
  while (places_[at].id_plus_1 != id + 1) {
    TERRACE_CHECK(places_[at].id_plus_1 != 0, "a live block is found by its key");
    ++at;
  }
  CloseGap(homes, at);
}

void KeyTable::Remove(uint32_t hash, BlockId id) {
  Remove(homes(), hash, id);
  --entry_count_;
}

void KeyTable::RemoveAll(uint32_t group_index, std::span<const BlockKey> keys, BlockId first) {
  const Homes homes = this->homes();
  std::array<uint32_t, kInFlight> hashes{};
  const auto ask_for = [&](size_t at) {
    const uint32_t hash = HashOf(group_index, keys[at]);
    hashes[at % kInFlight] = hash;
    __builtin_prefetch(&places_[homes.Of(hash)], 1);
  };
  for (size_t i = 0; i < std::min<size_t>(kInFlight, keys.size()); ++i)
    ask_for(keys.size() - 1 - i);
  for (size_t at = keys.size(); at-- > 0;) {
    const uint32_t hash = hashes[at % kInFlight];
    if (at >= kInFlight) ask_for(at - kInFlight);
    Remove(homes, hash, first + static_cast<BlockId>(at));
  }
  entry_count_ -= static_cast<uint32_t>(keys.size());
}

}  // namespace terrace
