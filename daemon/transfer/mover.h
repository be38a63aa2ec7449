// Mover: what moves blocks of one domain between DRAM and the tiers below, and whose turn it is:
// promotions first, for somebody waits for them; then what is read ahead, copies that are given up
// together, writes, and records that say something new.
//
// THREADING: store thread. LIMITS: those of its parts.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/residency/evictor.h"
#include "daemon/residency/residency.h"
#include "daemon/transfer/batch_drops.h"
#include "daemon/transfer/promotions.h"
#include "daemon/transfer/read_ahead.h"
#include "daemon/transfer/transfer_jobs.h"
#include "daemon/transfer/verifier.h"
#include "daemon/transfer/write_back.h"

namespace terrace {

class SharedReader;
class SharedWriter;

class Mover final : public LowerWriter, public VerifierListener {
 public:
  Mover(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier);
  // The tier that hosts share.
  void SetShared(SharedWriter* writer, SharedReader* reader) {
    shared_writer_ = writer;
    shared_reader_ = reader;
  }

  uint64_t NewRun() { return promotions_.NewRun(); }
  // Has the block brought to DRAM: from the fastest tier, from the tier that hosts share if it is
  // expected from there, or, if it is a predecessor's, by comparing it. After kOk OnBlockReady or
  // OnBlockLost follows. kNoSpace: DRAM has no room. REQUIRES: no DRAM copy, or an unverified one.
  Status Promote(BlockId id, const ReadOrder& order);
  // See Promotions.
  void Reprioritize(BlockId id, const ReadOrder& order) { promotions_.Reprioritize(id, order); }
  void ReadAheadOf(BlockId tip) { read_ahead_.Queue(tip); }
  void ReadBehind(std::span<const BlockId> left) { read_ahead_.QueueLeft(left); }
  // Sealed in DRAM just now: what is wanted below is verified, then queued.
  void OnSealed(BlockId id);
  // Writes the block to the persistent tier whatever the admission policy says. False if it never
  // will be.
  bool Persist(BlockId id);
  // A client of the device was answered with this block from elsewhere: from the second time on it
  // is copied there. REQUIRES: there is a device tier.
  void PromoteToDevice(BlockId id);

  // Begins what is queued, as far as the tiers take it. True if anything is still queued.
  bool Step();
  bool has_work() const;
  // Nothing is on its way, and nothing is queued that a tier may still take.
  bool is_idle() const;
  // For questions what waits for its turn; begun here only.
  const Promotions& promotions() const { return promotions_; }
  const WriteBack& write_back() const { return write_back_; }

  // Copies that leave together, as far as `*budget` (SubtreeWalk's) allows. Once a turn, before
  // Step: who always has a queue full of reads gives room back all the same.
  void StepDrops(uint32_t* budget);
  // A tier may have room now that had none, or be on again.
  void OnRoom();
  // The file of a group is there, or will not be.
  void OnGroupFilesChanged();
  // At least once a second.
  void Tick();
  // The transfer with this number: the low 48 bits of its TransferId.
  void OnTransferDone(uint64_t number, Status status);

  bool TryDemote(BlockId id) override { return write_back_.TryDemote(id); }
  bool FreeTogether(BlockId id, uint32_t tier, uint32_t local_index) override {
    return batch_drops_.Begin(id, tier, local_index);
  }
  void OnVerified(BlockId id) override;
  void OnFetched(BlockId id) override { OnSealed(id); }
  void OnPromotionChecked(BlockId id, bool is_good) override;
  void OnStepChecked(BlockId id, uint32_t step, bool is_good) override {
    promotions_.OnStepChecked(id, step, is_good);
  }

 private:
  bool HasWork(uint32_t tier) const;
  void StepTier(uint32_t tier);
  void EndAdoption(BlockId id, bool is_good);

  CacheDomain& d_;
  Residency& residency_;
  Verifier& verifier_;
  SharedWriter* shared_writer_ = nullptr;
  SharedReader* shared_reader_ = nullptr;
  TransferJobs jobs_;
  Promotions promotions_;
  ReadAhead read_ahead_;
  WriteBack write_back_;
  BatchDrops batch_drops_;
};

}  // namespace terrace
