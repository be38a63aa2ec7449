// What a look at copies in the persistent tier finds.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/block_key.h"
#include "tiers/tier.h"

namespace terrace {

// A block's copy in the persistent tier, as the tier knows it.
struct CopyName {
  uint32_t owner = kOwnerNone;  // BlockRecord::owner
  CommitId commit_id = 0;
  uint32_t member = 0;  // whose bytes
};
enum class CopyFinding : uint8_t {
  kGood,
  kMismatch,
  kUnreadable,
  kNotLooked,  // it left the tier meanwhile, or the tier is off
};
struct CopyFindings {
  std::vector<CopyFinding> findings;  // one of each copy that was named
  uint64_t member_count = 0;          // compared
  uint64_t read_bytes = 0;
};
// Why a copy is to go.
enum class CopyFault : uint8_t {
  kUseless,     // its place may be used again
  kUnreadable,  // its place is suspect
};

}  // namespace terrace
