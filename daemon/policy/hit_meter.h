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
#include "daemon/policy/histogram.h"
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
  // The last of those windows alone.
  const protocol::HitRateCounts& SinceStart(uint32_t group_index) const;
  // Another group has taken the place: it begins at nothing. What was counted stays in the whole.
  void ForgetGroup(uint32_t group_index);
  // Of all groups, each of the last so many minutes, the one that runs last.
  static constexpr uint32_t kMinutesKept = protocol::kHitRateWindowMinutes.back();
  std::array<protocol::HitRateCounts, kMinutesKept> Minutes(uint64_t now_us) const;
  // How many bytes of other blocks were used between two uses of one, estimated for all blocks from
  // the curve's sample; a first use is beyond all bounds.
  const ReuseDistances& reuse_distances() const { return reuse_distances_; }
  const HitMeterOptions& options() const { return options_; }
  uint32_t weight() const { return curve_.weight(); }

 private:
  static constexpr uint32_t kMinutes = kMinutesKept + 1;

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
  ReuseDistances reuse_distances_;
  History all_;
  std::vector<std::unique_ptr<History>> groups_;
  std::vector<uint32_t> sampled_;  // scratch: places of sampled keys
};

}  // namespace terrace
