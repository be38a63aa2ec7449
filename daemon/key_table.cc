#include "daemon/key_table.h"

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

}  // namespace terrace
