// Extent: where one member's bytes of one block lie inside a tier. Opaque above the tier; each tier
// says what the words mean.
#pragma once

#include <cstdint>

namespace terrace {

struct Extent {
  uint64_t position = 0;  // tier-specific: byte offset, slot number, …
  uint64_t length_bytes = 0;
  uint32_t shard = 0;  // path, slab file or server
  // use count of this place, so that a stale extent never reads newer bytes
  uint32_t generation = 0;

  friend bool operator==(const Extent&, const Extent&) = default;
};

}  // namespace terrace
