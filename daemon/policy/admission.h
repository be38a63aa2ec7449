// Admission: which blocks are worth writing below DRAM. Asked per block and tier, at two moments:
// when a block has been sealed (write-through), and when DRAM is about to drop it (write-back).
//
// Answers hold for paths: one block that is missing ends the prefix, so what hangs together is
// written together, or not at all.
//
// THREADING: one thread. Time comes with the events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/policy/eviction/policy.h"
#include "terrace/protocol.h"

namespace terrace {

enum class AdmissionMoment : uint8_t { kSealed, kEvicted };

struct AdmissionRequest {
  AdmissionMoment moment = AdmissionMoment::kSealed;
  protocol::TierKind tier = protocol::TierKind::kNvme;
  BlockId id = kBlockNone;
  BlockTraits traits;
  uint64_t now_us = 0;
  bool has_child_below = false;  // without this block what is below already is lost
};

class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;

  // What happens to a block in whatever tier, from the first copy to the last. Of a block that was
  // there before, nothing need have been told.
  virtual void OnInsert(BlockId, const BlockTraits&, uint64_t /*now_us*/) {}
  virtual void OnTouch(std::span<const BlockId>, const TouchContext&) {}
  virtual void OnErase(BlockId) {}
  // A lower tier made room by dropping a block that had been idle for so long.
  virtual void OnDropBelow(uint64_t /*idle_us*/) {}

  virtual bool Admits(const AdmissionRequest& request) = 0;

  // As EvictionPolicy's.
  virtual std::vector<std::byte> Learned() const { return {}; }
  virtual bool StartFrom(std::span<const std::byte> /*learned*/) { return false; }
};

struct AdmissionOptions {
  uint32_t capacity_blocks = 0;      // of the tiers below; > 0
  uint64_t write_bytes_per_day = 0;  // > 0; WearGovernor::kUnlimited: any number
};

// "all", "hit", "predicted", "second_use", …, in alphabetical order.
std::span<const std::string_view> AdmissionPolicyNames();
// Null if there is none of that name.
std::unique_ptr<AdmissionPolicy> MakeAdmissionPolicy(std::string_view name,
                                                     const AdmissionOptions& options);

}  // namespace terrace
