// MissedLookups: what late lookups have missed, by fingerprints, until something of it is stored:
// of what is behind an engine's first step nobody else tells.
//
// THREADING: one thread. LIMITS: kCountMax lookups; a new one takes the place of the oldest.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace terrace {

class MissedLookups {
 public:
  static constexpr uint32_t kCountMax = 64;

  struct Waited {
    uint32_t fingerprint = 0;
    uint32_t behind_count = 0;  // missed behind it
  };
  struct Lookup {
    uint64_t number = 0;  // of Add; 0: there is none here
    uint32_t first = 0;   // its ends
    uint32_t tip = 0;
    uint32_t any = 0;  // one at random
    uint32_t count = 0;
    std::vector<uint32_t> watched;  // those that a guard watches
    std::vector<Waited> waited;     // those whose last use waited for this one
  };

  // For the caller to fill. Its vectors are empty, and keep their memory from lookup to lookup.
  Lookup& Add();
  // The last one that began there, which is none any more; null if there is none. Good until Add.
  const Lookup* Take(uint32_t first);

 private:
  std::array<Lookup, kCountMax> lookups_;
  uint64_t added_count_ = 0;
};

}  // namespace terrace
