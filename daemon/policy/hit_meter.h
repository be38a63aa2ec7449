// HitMeter: what requests asked for and what became of it, by SpaceGroup and in windows of time,
// and what they would have got of smaller and larger tiers. Only Acquire counts: Match and Prefetch
// ask about blocks that an Acquire then asks for.
//
// THREADING: store thread. LIMITS: 12 KiB a group that was ever asked, and a CapacityCurve.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/policy/capacity_curve.h"
#include "terrace/block_key.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

struct HitMeterOptions {
  uint64_t dram_bytes = 0;   // what the domain may have; > 0
  uint64_t below_bytes = 0;  // of the tier below it; 0: there is none
  uint64_t seed = 0;
};

class HitMeter {
 public:
  explicit HitMeter(const HitMeterOptions& options);

  // Keys of an Acquire, a part of its prompt at a time, of blocks of so many bytes.
  void OnAsked(uint32_t group_index, std::span<const BlockKey> keys, uint64_t block_bytes,
               uint64_t now_us);
  // Blocks that move in.
  void OnStored(std::span<const BlockKey> keys, uint64_t block_bytes);
  // The outcome of a whole Acquire.
  void OnAnswered(uint32_t group_index, const protocol::HitRateCounts& counts, uint64_t now_us);

  // Of a group, or kAllGroups' number for all: one a window, as in protocol::kHitRateWindowMinutes.
  std::array<protocol::HitRateCounts, protocol::kHitRateWindows> Counts(uint32_t group_index,
                                                                        uint64_t now_us) const;
  const HitMeterOptions& options() const { return options_; }
  uint32_t weight() const { return curve_.weight(); }

 private:
  static constexpr uint32_t kMinutes = protocol::kHitRateWindowMinutes.back() + 1;

  struct Minute {
    uint64_t minute = 0;
    protocol::HitRateCounts counts;
  };
  struct History {
    std::array<Minute, kMinutes> minutes{};  // a ring
    protocol::HitRateCounts since_start;
  };

  void Add(uint32_t group_index, const protocol::HitRateCounts& counts, uint64_t now_us);
  static void AddTo(History* history, const protocol::HitRateCounts& counts, uint64_t now_us);

  const HitMeterOptions options_;
  CapacityCurve curve_;
  History all_;
  std::vector<std::unique_ptr<History>> groups_;
  std::vector<uint32_t> sampled_;  // scratch: places of sampled keys
};

}  // namespace terrace
