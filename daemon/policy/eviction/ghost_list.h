// GhostList: keys of blocks that left, newest last, to know them if they come back. Two keys of one
// fingerprint count as one: a policy that errs on one in 2^64 blocks loses nothing.
//
// LIMITS: what the caller trims it to.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "terrace/block_key.h"
#include "terrace/check.h"

namespace terrace {

class GhostList {
 public:
  void Add(const BlockKey& key) {
    Remove(key);
    places_[FingerprintOf(key)] = order_.insert(order_.end(), FingerprintOf(key));
    TERRACE_CHECK(order_.size() == places_.size(), "a ghost is in the order once: it leaves once");
  }
  // True if it was there.
  bool Remove(const BlockKey& key) {
    const auto place = places_.find(FingerprintOf(key));
    if (place == places_.end()) return false;
    order_.erase(place->second);
    places_.erase(place);
    return true;
  }
  void TrimTo(size_t count_max) {
    while (order_.size() > count_max) {
      places_.erase(order_.front());
      order_.pop_front();
    }
  }
  size_t count() const { return order_.size(); }

 private:
  static uint64_t FingerprintOf(const BlockKey& key) { return key.low ^ key.high; }

  std::list<uint64_t> order_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace terrace
