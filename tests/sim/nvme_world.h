// NvmeWorld: somebody who stores, reads, amends and frees blocks in an NvmeTier at random, and
// knows what every block must hold. Crashes, restores, and counts what came of it.
//
// Blocks carry real part checksums, as the store's do: bytes that are wrong and verify are a lie.
//
// THREADING: one thread.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sim/nvme_rig.h"

namespace terrace::sim {

class NvmeWorld final : public TierListener {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t disk_count = 1;
    uint64_t slab_bytes = 256 * kKiB;
    uint64_t slab_count = 6;
    bool resizes = false;  // the capacity goes down to one slab and up again, while all goes on
    uint64_t key_count = 200;
    struct Shape {
      uint64_t length_bytes;
      uint32_t part_count;
    };
    std::vector<Shape> shapes = {{4 * kKiB, 1}, {8 * kKiB, 2}, {16 * kKiB, 1}};
    SimDisk::Options disk;
  };
  struct Counts {
    uint64_t reads_right = 0;
    uint64_t reads_detected = 0;  // answered kOk, but the bytes did not verify
    uint64_t reads_failed = 0;
    uint64_t lies = 0;  // wrong bytes that verified
    uint64_t stored = 0;
    uint64_t restored = 0;
    uint64_t rooms = 0;            // times the tier said that there is room
    uint64_t lost_to_power = 0;    // blocks that were persisted, and no sync had covered
    uint64_t lost_age_us_max = 0;  // since the oldest of them was persisted
    uint64_t shrinks = 0;          // of the capacity, below what the files took
    uint64_t cuts = 0;             // daemons that began with more than they may have
    uint64_t moved = 0;            // blocks that are in another slab now
  };

  explicit NvmeWorld(const Options& options);
  ~NvmeWorld() override;

  NvmeRig& rig() { return *rig_; }
  NvmeTier& tier() { return rig_->tier(); }
  SimMedium& medium(size_t index = 0) { return media_[index]; }
  const Counts& counts() const { return counts_; }
  size_t live_count() const { return live_.size(); }
  std::vector<Extent> extents() const;
  const DomainSecret& secret() const { return secret_; }
  // What went against a promise; empty if nothing did.
  const std::vector<std::string>& complaints() const { return complaints_; }

  // One thing at random.
  void Step();
  void Run(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) Step();
  }
  // Everything in flight comes to an end, and syncs cover it.
  void Settle();
  // What the files may take, from now on.
  void Resize(uint64_t slab_count);
  uint64_t capacity_bytes() const { return capacity_slabs_ * options_.slab_bytes; }
  uint64_t file_bytes() const;
  // As Settle, for disks that had faults: what the tier gave up for lost is allowed to be.
  void Recover();

  enum class Ending : uint8_t { kCleanStop, kKill, kPowerLoss };
  // The daemon ends, and another begins on what is left. Checks what had to survive and what must
  // not come back.
  void Restart(Ending ending);
  // A reader who adopts what the media hold now, without checking what had to survive.
  void Reopen();
  // Reads every block. Those that do not verify are quarantined, as a store would.
  void ReadAll();

 private:
  struct Block {
    uint64_t key = 0;
    CommitId commit_id = 0;
    uint32_t part_count = 1;
    Extent extent;
    uint8_t priority = 0;
    uint32_t reads_in_flight = 0;
    bool is_ready = false;      // its write is done
    bool is_persisted = false;  // the tier said so,
    uint64_t persisted_us = 0;  // at this time
    bool is_amending = false;   // since it was last persisted or settled
    bool is_durable = false;    // a sync covers it
    std::vector<Checksum> checksums;
    // Copied there, if of any length: on its way, or done and not yet called durable.
    Extent move_to;
    bool is_copied = false;
    uint8_t moved_priority = 0;  // as the copy's record says
  };
  struct FreeMemory {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  struct Buffer {
    std::unique_ptr<std::byte, FreeMemory> bytes;
    uint64_t length_bytes = 0;
  };
  struct Transfer {
    uint64_t key = 0;
    bool is_read = false;
    bool is_move = false;  // a read of what is to be written elsewhere, or that write
    Buffer buffer;
  };

  void OnTransferDone(TransferId transfer_id, Status status) override;
  void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                   uint32_t member) override;
  void OnRecordInDoubt(uint32_t domain_index, uint32_t owner) override;
  void OnRoom(uint32_t /*domain_index*/) override { ++counts_.rooms; }

  // Time passes, with ticks as the daemon's.
  void Pass(uint64_t us);
  void Start();
  void ShareOut();
  void GiveBack();
  void GiveAll();
  void MoveSome();
  void BeginMove(Block& block);
  void EndMoves();
  void EndMove(Block& block, bool is_good);
  void OnMoveDone(const Transfer& transfer, Status status);
  void StepResize();
  void CheckCapacity();
  void Store();
  void FreeOne();
  void Drop(uint64_t key);
  void MakeRoom(uint64_t length_bytes, uint32_t part_count);
  void ReadOne(uint64_t key);
  void AmendOne();
  void Judge(const Block& block, const Buffer& buffer);
  void Expect(bool holds, const std::string& what);
  void CountLost(const std::map<uint64_t, Block>& before, uint64_t ended_us);
  void CheckSurvivors(Ending ending, const std::map<uint64_t, Block>& before);
  BlockRecord RecordOf(const Block& block) const;
  std::vector<Checksum> ChecksumsOf(const Block& block, std::span<const std::byte> bytes) const;
  static void Fill(const Block& block, std::span<std::byte> bytes);
  Block* PickReady();

  const Options options_;
  const DomainSecret secret_ = SecretFrom(1);
  std::mt19937_64 random_;
  std::vector<SimMedium> media_;
  uint64_t capacity_slabs_;
  std::unique_ptr<TierShares> shares_;  // the tier's alone
  uint64_t above_bytes_max_ = 0;        // of what the files take: above the capacity
  std::unique_ptr<NvmeRig> rig_;
  std::map<uint64_t, Block> live_;  // by key
  std::map<TransferId, Transfer> transfers_;
  std::set<CommitId> freed_;       // a successor may find them
  std::set<CommitId> erased_;      // a successor must not
  std::vector<Buffer> abandoned_;  // of transfers that a crash cut off
  std::vector<std::string> complaints_;
  Counts counts_;
  uint64_t next_tick_us_ = 0;
  TransferId next_transfer_ = 1;
  CommitId next_commit_ = 1;
};

}  // namespace terrace::sim
