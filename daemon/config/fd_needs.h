// How many files the daemon has open at most.
#pragma once

#include <cstdint>

namespace terrace {

// Each session holds its socket, a pidfd and a life socket; the rest of the process, some, with
// what operators may have beyond sessions_max and connections that have not said Hello. `others`
// are of Redis connections.
inline constexpr uint64_t FdsNeeded(uint32_t sessions_max, uint64_t others) {
  constexpr uint64_t kFdsPerSession = 3;
  constexpr uint64_t kFdsOfProcess = 256;
  return sessions_max * kFdsPerSession + kFdsOfProcess + others;
}

}  // namespace terrace
