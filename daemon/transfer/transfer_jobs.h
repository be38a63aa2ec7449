// TransferJobs: the transfers of blocks between DRAM and a tier: of each block one a local member,
// or, of a read by parts, one a member and step. What is to be moved, when, and what follows from
// it is the business of those who take a job: Promotions and WriteBack.
//
// THREADING: store thread. LIMITS: none of its own.
// INVARIANT: a block is held from Take until whoever took the job lets go of it, after Give.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/residency/residency.h"
#include "src/slot_pool.h"

namespace terrace {

// What a transfer that did not go well means for the copy below; the worst of its members' holds.
enum class TransferVerdict : uint8_t {
  kGood,
  kUnwanted,  // nobody waited for it any more
  kLater,     // the tier is off: the copy may be as good as ever
  kGone,
  kBad,  // a healthy drive could not read it, or read something else
};

struct TransferJob {
  BlockId block = kBlockNone;
  uint32_t tier = 0;
  uint32_t next_local = 0;  // the first member whose transfer (of this step) has not begun
  uint32_t in_flight_count = 0;
  uint32_t step = 0;                    // the first that has not begun
  uint32_t step_count = 1;              // 1: all is moved at once
  std::vector<uint8_t> step_transfers;  // by parts: in flight, of each step
  bool is_write = false;
  bool is_failed = false;
  TransferVerdict verdict = TransferVerdict::kGood;

  bool is_by_parts() const { return step_count > 1; }
  bool has_begun() const { return step > 0 || next_local > 0 || in_flight_count > 0; }
};

class TransferJobs {
 public:
  TransferJobs(CacheDomain& domain, BlockHolds& holds) : d_(domain), holds_(holds) {}

  enum class Direction : uint8_t { kRead, kWrite };
  // A job's number. The block is held.
  uint32_t Take(BlockId block, uint32_t tier, Direction direction);
  // The number is free. REQUIRES: nothing is in flight.
  TransferJob Give(uint32_t number);
  TransferJob& at(uint32_t number) { return jobs_[number]; }

  // Its block is read in its group's steps, if the tier reads parts. REQUIRES: it has not begun.
  void MakeByParts(uint32_t number);
  // Begins the members' transfers, of a read those of the next step. False if the tier's queue is
  // full: again later.
  bool Begin(uint32_t number);
  // All members' transfers (of this step) have begun, or need not.
  bool HasBegunAll(uint32_t number) const;
  void Fail(TransferJob& job, Status status);

  struct Ended {
    uint32_t number = 0;
    uint32_t step = 0;
  };
  // The transfer with this number, the low 48 bits of its TransferId, has ended.
  Ended OnTransferDone(uint64_t transfer_number, Status status);

  // Whether the tier can be read now: LowerTier::is_off.
  void LookAtHealth(uint32_t tier);
  // Jobs are at it on tiers other than the device, whose clients copy when they please.
  bool is_idle() const;

 private:
  Status BeginMember(uint32_t number, uint32_t local_index);

  CacheDomain& d_;
  BlockHolds& holds_;
  SlotPool<TransferJob> jobs_;
};

}  // namespace terrace
