// MemoryTier: a Tier in plain memory under virtual time, so that a seed replays exactly. A transfer
// takes its turn on a link of fixed bandwidth, then a seeded latency: completions may overtake each
// other, as on a drive. Bytes move at the completion, not at the call, so that a caller who lets go
// of a buffer or an extent too early is found out.
//
// THREADING: one thread. OWNERSHIP: the listener outlives the tier.
// LIMITS: capacity_bytes, queue_max.
#pragma once

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tiers/tier.h"

namespace terrace::sim {

class MemoryTier : public Tier {
 public:
  struct Options {
    TierKind kind = TierKind::kNvme;
    bool is_persistent = true;
    uint64_t capacity_bytes = 64 << 20;
    uint32_t queue_max = 64;
    uint64_t latency_us_min = 50;
    uint64_t latency_us_max = 400;
    uint64_t bytes_per_us = 4000;  // 4 GB/s
    uint64_t seed = 1;
  };
  explicit MemoryTier(const Options& options);

  // Before the first transfer: the Store is the listener, and is built after its tiers.
  void SetListener(TierListener* listener) { listener_ = listener; }

  // Finishes, in the order of their due times, all transfers due by `now_us`, those begun by the
  // listener meanwhile included. Time never goes back.
  void RunUntil(uint64_t now_us);
  // Due time of the next completion; UINT64_MAX: none.
  uint64_t NextCompletionUs() const;

  TierKind kind() const override { return options_.kind; }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  bool is_persistent() const override { return options_.is_persistent; }
  TierStats stats() const override;

 private:
  struct Stored {
    Extent extent;
    std::vector<std::byte> bytes;
    uint32_t transfer_count = 0;  // in flight
  };
  struct Transfer {
    TransferId id = 0;
    uint64_t position = 0;
    std::span<std::byte> into;        // a read's
    std::span<const std::byte> from;  // a write's
  };

  Stored* Find(const Extent& extent);
  Status Begin(const Extent& extent, Transfer transfer);
  uint64_t TransferUs(uint64_t length_bytes) const;

  const Options options_;
  TierListener* listener_ = nullptr;
  std::mt19937_64 random_;
  std::map<uint64_t, Stored> stored_;                        // by position
  std::map<std::pair<uint64_t, uint64_t>, Transfer> queue_;  // by (due time, order of arrival)
  std::set<TransferId> in_flight_;
  uint64_t now_us_ = 0;
  uint64_t link_free_at_us_ = 0;
  uint64_t transfers_begun_ = 0;
  uint32_t next_generation_ = 1;
  TierStats stats_;
};

}  // namespace terrace::sim
