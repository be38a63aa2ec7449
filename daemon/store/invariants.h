// The invariants of a domain, I1 to I8 (docs/ARCHITECTURE.md): tests check them after each step.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>

namespace terrace {

struct DomainRooms;

// kFull walks everything; kIncremental looks at what changed since the last call.
enum class CheckScope : uint8_t { kIncremental, kFull };

// Aborts with the invariant's name if one does not hold.
void CheckInvariants(const DomainRooms& rooms, CheckScope scope);

}  // namespace terrace
