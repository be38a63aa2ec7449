// RedisAbsence: names that were looked for and not found a moment ago, so that they are not looked
// for again at once. A table of fixed size in which a newer name takes the place of an older one.
//
// Pure. THREADING: one thread.
// LIMITS: kRedisAbsenceNames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiers/redis/redis_format.h"

namespace terrace {

inline constexpr size_t kRedisAbsenceNames = 32 * 1024;

class RedisAbsence {
 public:
  explicit RedisAbsence(uint64_t lasting_us)
      : lasting_us_(lasting_us), entries_(kRedisAbsenceNames) {}

  void Remember(const RedisBlockName& name, uint64_t now_us) {
    EntryOf(name) = {TagOf(name), now_us + lasting_us_};
  }
  void Forget(const RedisBlockName& name) {
    Entry& entry = EntryOf(name);
    if (entry.tag == TagOf(name)) entry.until_us = 0;
  }
  bool IsAbsent(const RedisBlockName& name, uint64_t now_us) {
    const Entry& entry = EntryOf(name);
    return entry.until_us > now_us && entry.tag == TagOf(name);
  }

 private:
  struct Entry {
    uint64_t tag = 0;
    uint64_t until_us = 0;
  };
  // Keys and Spaces are digests: their bits are as good as random.
  static uint64_t TagOf(const RedisBlockName& name) {
    return name.key.high ^ name.space.low * 0x9E3779B97F4A7C15 ^
           name.generation * 0xC2B2AE3D27D4EB4F;
  }
  Entry& EntryOf(const RedisBlockName& name) {
    return entries_[(name.key.low ^ name.space.low) % kRedisAbsenceNames];
  }

  const uint64_t lasting_us_;
  std::vector<Entry> entries_;
};

}  // namespace terrace
