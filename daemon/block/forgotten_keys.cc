#include "daemon/block/forgotten_keys.h"

#include <algorithm>

#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {

ForgottenKeys::ForgottenKeys()
    : entries_(static_cast<Entry*>(std::calloc(kKeysMax, sizeof(Entry)))) {
  TERRACE_CHECK(entries_ != nullptr, "memory for what was forgotten");
}

uint64_t ForgottenKeys::HashOf(uint32_t group_index, const BlockKey& key) {
  uint64_t x = (key.low ^ uint64_t{group_index} << 32) * 0x9E3779B97F4A7C15u ^ key.high;
  x = (x ^ (x >> 31)) * 0x94D049BB133111EBu;
  return x ^ (x >> 29);
}

void ForgottenKeys::Remember(uint32_t group_index, const BlockKey& key, protocol::MissCause cause,
                             uint64_t now_us, Was was) {
  const uint64_t hash = HashOf(group_index, key);
  Entry* const place = PlaceOf(hash);
  Entry* chosen = place;
  for (uint32_t way = 0; way < kWays; ++way) {
    if (place[way].time_s != 0 && place[way].fingerprint == hash) {
      chosen = &place[way];
      break;
    }
    if (place[way].time_s < chosen->time_s) chosen = &place[way];
  }
  *chosen = {.fingerprint = hash,
             .time_s = static_cast<uint32_t>(now_us / kUsPerSecond) + 1,
             .cause = cause,
             .has_passed_by = was == Was::kPassingBy};
}

const ForgottenKeys::Entry* ForgottenKeys::Find(uint32_t group_index, const BlockKey& key) const {
  const uint64_t hash = HashOf(group_index, key);
  const Entry* const place = PlaceOf(hash);
  for (uint32_t way = 0; way < kWays; ++way) {
    if (place[way].time_s != 0 && place[way].fingerprint == hash) return &place[way];
  }
  return nullptr;
}

}  // namespace terrace
