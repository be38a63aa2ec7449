// NvmeDisks: the disks of a tier, the requests on their way to them, and whether each is trusted
// with more. A request that does not come back switches its disk off once; it keeps its number and
// its memory.
//
// THREADING: the store thread. OWNERSHIP: disks and listener outlive it; as of a Disk's listener,
// nothing is told once it is gone.
// LIMITS: each disk's queue_max.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "src/slot_pool.h"
#include "tiers/disk/disk.h"
#include "tiers/disk/disk_health.h"
#include "tiers/disk/read_speed.h"
#include "tiers/tier.h"

namespace terrace {

// Whose a request is. kRead and kWrite are payload: transfers.
enum class NvmeRequestKind : uint8_t { kRead, kWrite, kEntry, kSync, kSlabStep, kProbe, kTrial };

struct NvmeRequest {
  NvmeRequestKind kind = NvmeRequestKind::kRead;
  uint32_t disk = 0;
  uint32_t slab = 0;
  uint32_t slot = 0;
  TransferId transfer_id = 0;
  uint64_t length_bytes = 0;              // of a transfer; of a file to be made, set by Submit
  std::shared_ptr<PayloadCipher> cipher;  // of a transfer whose payload is encrypted
  bool is_moved = false;                  // of a write: BlockRecord::is_moved
  // Set by Submit.
  DiskOp op = DiskOp::kRead;
  uint64_t behind_bytes = 0;  // of transfers in flight on the disk when it began, itself included
  uint64_t begun_us = 0;
  bool is_stuck = false;  // too old, and its disk was switched off for it

  bool is_transfer() const {
    return kind == NvmeRequestKind::kRead || kind == NvmeRequestKind::kWrite;
  }
};

class NvmeDisks {
 public:
  struct Options {
    std::vector<Disk*> disks;              // ≥ 1
    std::vector<std::string> lost_mounts;  // by disk; see DriveTrouble
    std::function<uint64_t()> now_us;
    DiskHealth::Options health;
    uint64_t stuck_us = 0;  // a request this old switches its disk off
  };
  NvmeDisks(Options options, DiskListener* listener);
  ~NvmeDisks();
  NvmeDisks(const NvmeDisks&) = delete;
  NvmeDisks& operator=(const NvmeDisks&) = delete;

  uint32_t count() const { return static_cast<uint32_t>(disks_.size()); }
  Disk& disk(uint32_t index) const { return *disks_[index].disk; }
  uint64_t now_us() const { return options_.now_us(); }

  // As Disk::Submit; the tag is this class's.
  Status Submit(NvmeRequest request, DiskRequest disk_request);
  // A Disk has answered: its request, which is over. REQUIRES: one that is in flight.
  NvmeRequest Finish(uint64_t tag, Status status);
  // A read that Finish returned brought its bytes.
  void MeasureRead(const NvmeRequest& request);
  // Requests of this turn go out together.
  void Flush();

  // Off: no request but probes, and who asks for room or bytes is told so.
  bool is_on(uint32_t disk) const { return disks_[disk].health.is_on(); }
  bool is_any_on() const;
  bool is_queue_full(uint32_t disk) const;
  bool is_any_in_flight() const;
  uint64_t transfer_bytes(uint32_t disk) const { return disks_[disk].transfer_bytes; }  // in flight
  uint64_t transfers_in_flight() const { return transfers_in_flight_; }
  // Of a read begun now, behind what is in flight. A single one is on one of the disks that are on:
  // the average over them. More is spread over them, and there when the last one has its share.
  uint64_t PredictReadUs(uint64_t length_bytes) const;
  // As Tier::SilentUs. A silent disk is tried again after a second, then ever more rarely.
  uint64_t SilentUs(uint32_t disk) const;

  // Switches off the disks of requests that are too old.
  void SwitchOffStuck();
  uint64_t stuck_count() const { return stuck_count_; }  // as SwitchOffStuck found
  bool TakeProbeTurn(uint32_t disk) { return disks_[disk].health.TakeProbeTurn(now_us()); }
  void OnProbe(uint32_t disk, Status status) { disks_[disk].health.OnProbe(status); }

  // Making files waits after one that failed.
  bool may_create(uint32_t disk) const { return disks_[disk].health.may_create(now_us()); }
  void OnCreated(uint32_t disk) { disks_[disk].health.OnCreated(); }
  void OnCreateFailed(uint32_t disk) { disks_[disk].health.OnCreateFailed(now_us()); }

  // Of the first disk that is on, where none that is may have another file: of any the same limit.
  std::optional<FileRoom> FilesAtLimit() const;

  // Somebody has removed files of the disk since the last call: syncs tell which.
  bool TakeRemovals(uint32_t disk);
  // Whether those that were full have room again. Now and then.
  void LookForRoom();
  // Of disks that are off, full or not where they lay; none where all is well.
  std::vector<DriveTrouble> Troubles() const;

 private:
  struct DiskState {
    Disk* disk;
    DiskHealth health;
    ReadSpeed speed;
    uint64_t transfer_bytes = 0;
    uint64_t requests_in_flight = 0;
    uint64_t reads_awaited = 0;
    uint64_t silent_since_us = 0;  // while reads are awaited
    uint64_t read_begun_us = 0;    // the last one
    uint64_t removed_count = 0;    // DiskStats::files_removed as last seen
  };

  const Options options_;
  std::vector<DiskState> disks_;
  SlotPool<NvmeRequest> requests_;  // by tag
  uint64_t transfers_in_flight_ = 0;
  uint64_t read_bytes_ = 0;  // of the last read: what lies on one disk
  uint64_t stuck_count_ = 0;
};

}  // namespace terrace
