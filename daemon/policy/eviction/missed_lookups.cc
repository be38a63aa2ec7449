#include "daemon/policy/eviction/missed_lookups.h"

#include <algorithm>

namespace terrace {

MissedLookups::Lookup& MissedLookups::Add() {
  Lookup& lookup = *std::ranges::min_element(lookups_, {}, &Lookup::number);
  lookup.number = ++added_count_;
  lookup.watched.clear();
  lookup.waited.clear();
  return lookup;
}

const MissedLookups::Lookup* MissedLookups::Take(uint32_t first) {
  Lookup* last = nullptr;
  for (Lookup& lookup : lookups_) {
    if (lookup.number == 0 || lookup.first != first) continue;
    if (last == nullptr || lookup.number > last->number) last = &lookup;
  }
  if (last != nullptr) last->number = 0;
  return last;
}

}  // namespace terrace
