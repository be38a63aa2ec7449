// SharedFindings: what the shared tier has lately said it has, believed for a moment: the request
// it was asked for comes at once. Who looks one up gets none that is too old; those leave some at a
// time.
//
// THREADING: store thread. LIMITS: kCountMax at a time, and twice as many told within kBelievedUs;
// kExpiriesPerTickMax leave a Tick.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "daemon/block/group.h"
#include "terrace/block_key.h"
#include "terrace/units.h"

namespace terrace {

struct SharedFinding {
  uint64_t member_mask = 0;
  BlockKey run;
  uint32_t position = 0;
};

class SharedFindings {
 public:
  static constexpr uint32_t kCountMax = 64 * 1024;
  static constexpr uint32_t kExpiriesPerTickMax = 512;
  static constexpr uint64_t kBelievedUs = kUsPerSecond;

  struct Place {
    GroupId group;
    BlockKey key;
    friend bool operator==(const Place&, const Place&) = default;
  };

  // False: there is no room. `now_us` does not fall from call to call.
  bool Add(const Place& place, const SharedFinding& finding, uint64_t now_us) {
    Drop(now_us, kExpiriesPerAdd);
    const bool is_room = found_.size() < kCountMax || found_.contains(place);
    if (!is_room || expiries_.size() >= kExpiriesMax) return false;
    const uint64_t until_us = now_us + kBelievedUs;
    found_[place] = {.finding = finding, .until_us = until_us};
    expiries_.push_back({.place = place, .until_us = until_us});
    return true;
  }
  const SharedFinding* Find(const Place& place, uint64_t now_us) const {
    const auto found = found_.find(place);
    if (found == found_.end() || found->second.until_us <= now_us) return nullptr;
    return &found->second.finding;
  }
  void Forget(const Place& place) { found_.erase(place); }
  // The oldest that are not believed any more.
  void Expire(uint64_t now_us) { Drop(now_us, kExpiriesPerTickMax); }

  bool is_empty() const { return found_.empty(); }
  // Also those that are not believed any more.
  size_t count() const { return found_.size(); }

 private:
  static constexpr size_t kExpiriesMax = 2 * size_t{kCountMax};
  // Two leave for one that comes: what is old is in nobody's way.
  static constexpr uint32_t kExpiriesPerAdd = 2;

  struct PlaceHash {
    size_t operator()(const Place& place) const {
      return static_cast<size_t>(place.key.low ^ place.group.low * 0x9E3779B97F4A7C15);
    }
  };
  struct Believed {
    SharedFinding finding;
    uint64_t until_us = 0;
  };
  struct Expiry {
    Place place;
    uint64_t until_us = 0;
  };

  void Drop(uint64_t now_us, uint32_t count_max) {
    for (; count_max > 0 && !expiries_.empty(); --count_max) {
      const Expiry& first = expiries_.front();
      if (first.until_us > now_us) return;
      // It may have been forgotten, and found again.
      const auto found = found_.find(first.place);
      if (found != found_.end() && found->second.until_us <= now_us) found_.erase(found);
      expiries_.pop_front();
    }
  }

  std::unordered_map<Place, Believed, PlaceHash> found_;
  std::deque<Expiry> expiries_;  // of each Add, by until_us
};

}  // namespace terrace
