// SaltedHash: from a fingerprint to a place of a table, by a salt that nobody can foretell: clients
// choose keys, and none shall aim at one place. Nothing but the time of a search hangs on it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>

namespace terrace {

class SaltedHash {
 public:
  // REQUIRES: place_count is a power of two, of 2 to 2^31.
  explicit SaltedHash(size_t place_count)
      : salt_(std::random_device()() | 1),
        shift_(32 - static_cast<uint32_t>(std::countr_zero(place_count))) {}

  uint32_t PlaceOf(uint32_t fingerprint) const { return (fingerprint * salt_) >> shift_; }

 private:
  uint32_t salt_;
  uint32_t shift_;
};

}  // namespace terrace
