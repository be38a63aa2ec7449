// Judges the histories of many processes of one daemon, or of a line of daemons: whether there is
// an order of things in which every read is what the cache had.
//
// A block's commit may be visible from when its Commit was called. It may go at any time, and has
// to be gone for whoever asks after an erasure was answered that began when the commit had been.
// So a read of commit c of block k between `began` and `ended` is wrong if
//   - nobody was granted c, or it was granted for another block (kUnknown),
//   - it was never committed, only later, or the daemon had refused it (kUncommitted),
//   - an erasure of k began after c's Commit was answered, and was answered before this read began
//     (kErased),
//   - the same lease, held and valid, gave another commit before (kChanged).
// And a grant is wrong if another process, whose Commit was then accepted, had that block
// (kShared).
// Of the blocks that one Acquire gives, from the first of a prompt on, each is judged: a block is
// hit only behind all before it. Who asks from the middle on gets what is there: a block outlives
// its parent where that was erased while it was being written.
//
// Of a daemon that never died and has no Redis server behind it, more holds (Rules::is_settled): a
// grant says that the block was not there, as an erasure does, so what it had before never comes
// back (kErased); and a prefix of which somebody holds a lease is found (kLost).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chaos/history.h"

namespace terrace::chaos {

enum class Fault : uint8_t {
  kUnknown,
  kUncommitted,
  kErased,
  kChanged,
  kShared,
  kLost,
};
const char* FaultName(Fault fault);

struct Finding {
  Fault fault = Fault::kUnknown;
  size_t history = 0;  // which of them, and where in it
  size_t at = 0;
  uint32_t prompt = 0;
  uint32_t block = 0;
  CommitId commit_id = 0;
};

struct Rules {
  bool is_settled = false;
  uint32_t prompts_per_family = 4;  // which have this many first blocks in common
  uint32_t family_blocks = 3;
};

struct Verdict {
  uint64_t operations = 0;  // calls that were answered
  uint64_t blocks_read = 0;
  uint64_t blocks_held = 0;  // read again in the lease that held them
  uint64_t commits = 0;
  uint64_t erasures = 0;
  uint64_t finding_count = 0;
  std::vector<Finding> findings;  // the first hundred
};

Verdict CheckHistories(const std::vector<std::span<const uint64_t>>& histories, const Rules& rules);

}  // namespace terrace::chaos
