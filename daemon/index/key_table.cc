#include "daemon/index/key_table.h"

#include <algorithm>
#include <array>

#include "terrace/check.h"

namespace terrace {

// Closes the gap: whatever behind it belongs at it or before it moves up, so that no search ends
// early.
void KeyTable::Remove(uint32_t hash, BlockId id) {
  uint32_t gap = HomeOf(hash);
  while (places_[gap].id_plus_1 != id + 1) {
    TERRACE_CHECK(places_[gap].id_plus_1 != 0, "a live block is found by its key");
    gap = Next(gap);
  }
  for (uint32_t next = Next(gap); places_[next].id_plus_1 != 0; next = Next(next)) {
    const uint32_t home = HomeOf(places_[next].hash);
    if (Distance(home, next) >= Distance(gap, next)) {
      places_[gap] = places_[next];
      gap = next;
    }
  }
  places_[gap] = {};
}

void KeyTable::RemoveAll(uint32_t group_index, std::span<const BlockKey> keys, BlockId first) {
  std::array<uint32_t, kInFlight> hashes{};
  const auto ask_for = [&](size_t at) {
    const uint32_t hash = HashOf(group_index, keys[at]);
    hashes[at % kInFlight] = hash;
    __builtin_prefetch(&places_[HomeOf(hash)], 1);
  };
  for (size_t i = 0; i < std::min<size_t>(kInFlight, keys.size()); ++i)
    ask_for(keys.size() - 1 - i);
  for (size_t at = keys.size(); at-- > 0;) {
    const uint32_t hash = hashes[at % kInFlight];
    if (at >= kInFlight) ask_for(at - kInFlight);
    Remove(hash, first + static_cast<BlockId>(at));
  }
}

}  // namespace terrace
