// AbsentPlaces: where blocks of a domain may lie that no erasure reaches now: a drive that has
// served and is not served, a slab file that the start could not read, a Redis server under another
// secret, memory that somebody else keeps.
//
// THREADING: store thread; none blocks.
#pragma once

#include <cstdint>

namespace terrace {

enum class ErasureReach : uint8_t { kHere, kEverywhere };

class AbsentPlaces {
 public:
  virtual ~AbsentPlaces() = default;
  // Something of the domain was erased: what these places have of it is not believed when they are
  // back. Written by another thread, once.
  virtual void NoteErasure(uint32_t domain_index) = 0;
  // That is written down. After it has become so, Store::OnGroupFilesChanged follows.
  virtual bool HasNoted(uint32_t domain_index) const = 0;
};

}  // namespace terrace
