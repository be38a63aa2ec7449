// MemoryTier: a Tier in plain memory under virtual time, so that a seed replays exactly. A transfer
// takes its turn on a link of fixed bandwidth, then a seeded latency: completions may overtake each
// other, as on a drive. Bytes move at the completion, not at the call, so that a caller who lets go
// of a buffer or an extent too early is found out.
//
// A persistent one keeps a record beside the bytes, as a drive with a header table does: a written
// record outlives the process after a seeded delay, and so does the erasure of a freed one. What is
// on its way when the process is killed goes by the seed.
//
// THREADING: one thread. OWNERSHIP: the listener outlives the tier.
// LIMITS: capacity_bytes, queue_max.
#pragma once

#include <functional>
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
    uint64_t persist_us_max = 500;
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

  // The process that used the tier is gone: transfers in flight are torn, and nobody is told.
  // REQUIRES: persistent. Until Restore nothing but Restore may be called.
  void KillProcess();
  // Tells the successor of what is left. kOwnerNone frees the extent.
  using RestoreSink = std::function<uint32_t(const BlockRecord& record, const Extent& extent)>;
  void Restore(const RestoreSink& sink);
  // As if the sector with this record had gone bad: a successor does not find it.
  void ForgetRecord(const BlockKey& key, uint32_t member);
  // The bytes stored with this record rot.
  void FlipBit(const BlockKey& key, uint32_t member);

  TierKind kind() const override { return options_.kind; }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  void Quarantine(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  bool reads_ranges() const override { return true; }
  Status ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                   std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  void Amend(const Extent& extent, const BlockRecord& record) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  bool is_persistent() const override { return options_.is_persistent; }
  ErasureProgress erasures() const override {
    return {erasures_begun_, erasing_.empty() ? erasures_begun_ : erasing_.begin()->first};
  }
  TierStats stats() const override;

 private:
  enum class RecordState : uint8_t { kNone, kWritten, kPersisted };
  struct Stored {
    Extent extent;
    std::vector<std::byte> bytes;
    uint32_t transfer_count = 0;  // in flight
    BlockRecord record;
    std::vector<Checksum> part_checksums;  // the record's
    uint64_t epoch = 0;
    RecordState state = RecordState::kNone;
    bool is_quarantined = false;
  };
  enum class EventKind : uint8_t { kTransfer, kPersist, kErase };
  struct Event {
    EventKind kind = EventKind::kTransfer;
    TransferId id = 0;
    Extent extent;
    std::span<std::byte> into;        // a read's
    uint64_t offset_bytes = 0;        // of a read, inside the extent
    std::span<const std::byte> from;  // a write's
  };

  Stored* Find(const Extent& extent);
  Status Begin(Event transfer);
  void Post(uint64_t delay_us, const Event& event);
  void EndTransfer(const Event& transfer);
  void Keep(const BlockRecord& record, Stored* stored) const;
  uint64_t TransferUs(uint64_t length_bytes) const;

  const Options options_;
  TierListener* listener_ = nullptr;
  std::mt19937_64 random_;
  std::map<uint64_t, Stored> stored_;                     // by position
  std::map<uint64_t, Stored> erasing_;                    // freed, still to be found; in order
  std::map<std::pair<uint64_t, uint64_t>, Event> queue_;  // by (due time, order of arrival)
  std::set<TransferId> in_flight_;
  uint64_t now_us_ = 0;
  uint64_t link_free_at_us_ = 0;
  uint64_t event_count_ = 0;
  uint64_t write_count_ = 0;
  uint64_t erasures_begun_ = 0;
  uint32_t next_generation_ = 1;
  TierStats stats_;
};

}  // namespace terrace::sim
