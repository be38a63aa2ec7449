// Admission: which blocks are worth writing below DRAM. Asked per block and tier, at two moments:
// when a block has been sealed (write-through), and when DRAM is about to drop it (write-back).
//
// THREADING: one thread.
#pragma once

#include <cstdint>

#include "daemon/eviction/policy.h"
#include "terrace/protocol.h"

namespace terrace {

enum class AdmissionMoment : uint8_t { kSealed, kEvicted };

class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  virtual bool Admits(AdmissionMoment moment, protocol::TierKind tier,
                      const BlockTraits& block) = 0;
};

// Everything, at once: DRAM copies are clean soon after they are sealed, so dropping them is free
// and a crash loses little.
class AdmitAll final : public AdmissionPolicy {
 public:
  bool Admits(AdmissionMoment, protocol::TierKind, const BlockTraits&) override { return true; }
};

}  // namespace terrace
