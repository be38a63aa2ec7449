// The blocks of one domain without a Store: real records, slots and policies; the tiers below, the
// checksum pool, the clock and whoever waits are fakes that do what a test says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/residency/evictor.h"
#include "daemon/residency/residency.h"
#include "sim/fakes.h"
#include "tiers/arena/slot_table.h"

namespace terrace {

// A tier whose transfers end when a test says so.
class ScriptedTier final : public Tier {
 public:
  struct Transfer {
    TransferId id = 0;
    Extent extent;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
    bool is_write = false;
    bool is_moved = false;
    BlockKey key;  // of a write
  };

  TierKind kind() const override { return TierKind::kNvme; }
  Result<Extent> Allocate(uint32_t, uint64_t length_bytes, uint32_t) override {
    if (used_count == place_count) return Status(StatusCode::kNoSpace);
    ++used_count;
    return Extent{.position = next_position_++, .length_bytes = length_bytes};
  }
  void Free(const Extent&) override { --used_count; }
  void Quarantine(const Extent& extent) override {
    quarantined.push_back(extent.position);
    Free(extent);
  }
  Status Read(TransferId id, const Extent& extent, std::span<std::byte> into) override {
    return Begin({.id = id, .extent = extent, .length_bytes = into.size()});
  }
  bool reads_ranges() const override { return can_read_ranges; }
  Status ReadRange(TransferId id, const Extent& extent, uint64_t offset_bytes,
                   std::span<std::byte> into) override {
    return Begin(
        {.id = id, .extent = extent, .offset_bytes = offset_bytes, .length_bytes = into.size()});
  }
  Status Write(TransferId id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override {
    return Begin({.id = id,
                  .extent = extent,
                  .length_bytes = from.size(),
                  .is_write = true,
                  .is_moved = record.is_moved,
                  .key = record.key});
  }
  void Amend(const Extent&, const BlockRecord& record) override { amended.push_back(record); }
  uint64_t PredictReadUs(uint64_t) const override { return 100; }
  bool is_persistent() const override { return is_persistent_; }
  void AppendOwnersToDrop(uint64_t, uint32_t, std::vector<uint32_t>* owners) override {
    owners->insert(owners->end(), owners_to_drop.begin(), owners_to_drop.end());
  }
  bool AppendOwnersToGive(std::vector<uint32_t>* owners) override {
    owners->insert(owners->end(), owners_to_give.begin(), owners_to_give.end());
    return false;
  }
  bool AppendOwnersToMove(std::vector<uint32_t>* owners) override {
    owners->insert(owners->end(), owners_to_move.begin(), owners_to_move.end());
    return false;
  }
  bool IsToMove(const Extent& extent) const override {
    return positions_to_move.contains(extent.position);
  }
  MovedState StateOfMoved(const Extent&) const override { return moved_state; }
  void GiveUpMoving() override { has_given_up_moving = true; }
  TierStats stats() const override { return {.is_healthy = is_healthy}; }

  // The oldest transfer under way, which is over for the tier.
  Transfer Take() {
    const Transfer first = transfers.at(0);
    transfers.erase(transfers.begin());
    return first;
  }

  uint32_t place_count = 64;
  uint32_t used_count = 0;
  uint32_t queue_max = 64;
  bool is_persistent_ = true;
  bool is_healthy = true;
  bool can_read_ranges = false;
  std::vector<Transfer> transfers;
  std::vector<BlockRecord> amended;
  std::vector<uint64_t> quarantined;
  std::vector<uint32_t> owners_to_drop;
  std::vector<uint32_t> owners_to_give;
  std::vector<uint32_t> owners_to_move;
  std::set<uint64_t> positions_to_move;
  MovedState moved_state = MovedState::kComing;
  bool has_given_up_moving = false;

 private:
  Status Begin(const Transfer& transfer) {
    if (transfers.size() == queue_max) return Status(StatusCode::kBusy);
    transfers.push_back(transfer);
    return Status::Ok();
  }

  uint64_t next_position_ = 1;
};

// Checksums that a test answers.
class ScriptedOffload final : public Offload {
 public:
  Status Submit(ChecksumJob job) override {
    if (jobs.size() == jobs_max) return Status(StatusCode::kBusy);
    jobs.push_back(std::move(job));
    return Status::Ok();
  }
  std::vector<ChecksumJob> jobs;
  size_t jobs_max = 64;
};

class BlockWorld : public BlockObserver {
 public:
  static constexpr uint64_t kBytes = 256 * kKiB;  // of a block: eight fill the arena
  static constexpr uint32_t kSlotCount = 8;

  struct Options {
    uint32_t tier_count = 0;
    uint32_t part_count = 1;
    uint32_t read_ahead_blocks = 0;
    uint32_t blocks_max = 64;
  };

  explicit BlockWorld(const Options& options) : arena(kSegmentBytesMin, 1) {
    limits.eviction_policy = limits.lower_eviction_policy = "lru";
    limits.blocks_max = options.blocks_max;
    limits.read_ahead_blocks = options.read_ahead_blocks;
    limits.part_read_bytes_min = 4 * kKiB;
    slot_table.resize(SlotTableBytes(kSegmentBytesMin, 1));
    DomainOptions domain{.name = "test",
                         .segment_bytes = kSegmentBytesMin,
                         .segments_max = 1,
                         .arena = &arena,
                         .slot_table = slot_table};
    for (uint32_t t = 0; t < options.tier_count; ++t) {
      tiers.push_back(std::make_unique<ScriptedTier>());
      tiers.back()->is_persistent_ = t == 0;
      domain.lower_tiers.push_back(tiers.back().get());
    }
    d_owned = std::make_unique<CacheDomain>(
        0, std::move(domain), limits,
        StoreSeams{clock, random, offload, listener, deadlines, work});
    r_owned = std::make_unique<Residency>(*d_owned);
    r_owned->observers.waiting = this;
    arena.BeginPopulate(0);
    d_owned->slots.SegmentPopulated(0);
    OpenGroup(options.part_count);
  }

  CacheDomain& d() { return *d_owned; }
  Residency& r() { return *r_owned; }
  const Block& block(BlockId id) const { return d_owned->block(id); }
  ScriptedTier& tier() { return *tiers[0]; }

  static BlockKey Key(uint64_t number) { return {number, ~number}; }
  // A Reserved block without slots, the child of `parent`.
  BlockId Reserve(uint64_t number, BlockId parent = kBlockNone, const protocol::Hints& hints = {}) {
    const uint32_t position = parent == kBlockNone ? 0 : d().index.node(parent).position + 1;
    return r().lifecycle.Reserve({.key = Key(number),
                                  .position = position,
                                  .parent = parent,
                                  .writer_session = 7,
                                  .writer_uid = 1000,
                                  .hints = hints});
  }
  // Sealed, in DRAM, with its checksums known but not compared.
  BlockId Put(uint64_t number, BlockId parent = kBlockNone, const protocol::Hints& hints = {}) {
    const BlockId id = Reserve(number, parent, hints);
    uint32_t short_class = 0;
    EXPECT_TRUE(r().dram.TakeSlots(id, 1, {}, &short_class).ok());
    for (Checksum& root : d().roots_of(block(id))) root = {number, 1};
    r().lifecycle.Seal(id, 1);
    return id;
  }
  // The same with a readable copy in tier 0, which might not outlive the process yet.
  BlockId PutBelow(uint64_t number, BlockId parent = kBlockNone) {
    const BlockId id = Put(number, parent);
    uint32_t short_local = 0;
    EXPECT_TRUE(r().lower.TakeExtents(id, 0, &short_local).ok());
    r().lower.EndFill(id, 0, true);
    return id;
  }
  // Likewise, and nowhere else.
  BlockId PutBelowOnly(uint64_t number, BlockId parent = kBlockNone) {
    const BlockId id = PutBelow(number, parent);
    r().lifecycle.DropDram(id);
    return id;
  }
  BlockId Find(uint64_t number) const { return d_owned->index.Find(0, Key(number)); }

  void OnBlockReady(BlockId id) override { Tell("ready", id); }
  void OnStepsIn(BlockId id) override { Tell("steps", id); }
  void OnBlockLost(BlockId id, StatusCode) override { Tell("lost", id); }
  void OnBlockPersisted(BlockId id) override { Tell("persisted", id); }
  // What was told since the last time, with the numbers of keys.
  std::vector<std::string> Told() { return std::exchange(told_, {}); }

  sim::VirtualClock clock;
  sim::SeededRandom random{1};
  ScriptedOffload offload;
  sim::RecordingListener listener;
  DeadlineHeap deadlines;
  uint64_t work = 0;
  StoreOptions limits;
  sim::PlainArena arena;
  std::vector<std::byte> slot_table;
  std::vector<std::unique_ptr<ScriptedTier>> tiers;
  std::unique_ptr<CacheDomain> d_owned;
  std::unique_ptr<Residency> r_owned;

 private:
  void OpenGroup(uint32_t part_count) {
    SpaceSpec space{.model = "test",
                    .revision = "1",
                    .dtype = "bf16",
                    .layers = 4,
                    .kv_heads = 1,
                    .head_size = 64,
                    .layout = "nhd",
                    .block_tokens = 16};
    space.part_bytes.assign(part_count, kBytes / part_count);
    auto group = std::make_unique<Group>();
    const SpaceGroupSpec spec{.name = "test", .members = {{.spec = space}}};
    ASSERT_TRUE(group->Open(spec, 1, &d().slots, &d().slot_classes).ok());
    group->PlanPartReads(limits.part_read_bytes_min);
    d().groups.Put(0, std::move(group));
  }
  void Tell(const std::string& what, BlockId id) {
    told_.push_back(what + " " + std::to_string(d().index.key(id).low));
  }

  std::vector<std::string> told_;
};

}  // namespace terrace
