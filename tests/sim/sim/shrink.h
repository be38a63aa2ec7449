// A seed that fails is made smaller: fewer steps, then fewer kinds of what can happen, then fewer
// steps in which anybody acts, as long as it still fails, however it does. Each attempt is a child
// process, since broken invariants abort.
//
// THREADING: one thread, and no other in the process: it forks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "sim/swarm.h"

namespace terrace::sim {

// A world, as one attempt has it.
struct Case {
  uint64_t seed = 0;
  uint32_t steps = 0;
  KindSet without;  // taken out
  StepSet acts;

  // What a shell repeats it with, but for the program.
  std::string Environment() const;
};

// Runs the case; an empty string, else what was wrong. Says which step it is in.
using Steps = std::atomic<uint32_t>;
using RunCase = std::function<std::string(const Case& of, Steps* step)>;

struct Verdict {
  bool fails = false;
  std::string why;
  uint32_t step = 0;  // reached
};
// In a child, for so many seconds. One that takes longer does not fail.
Verdict Attempt(const RunCase& run, const Case& of, unsigned seconds_max);

struct Shrunk {
  Case smallest;
  Verdict verdict;         // of the smallest; fails unless the first case did not
  uint32_t acts_left = 0;  // steps in which somebody acts
  uint32_t attempts = 0;
};
Shrunk Shrink(const RunCase& run, const Case& first, double seconds_max);

}  // namespace terrace::sim
