// Verifier: the checksums of slot bytes, computed by other threads, and what follows from them.
// Three occasions: a sealed block whose client gave no checksums gets them; a block first served to
// another process is compared with them; a promoted block is compared before it becomes readable.
//
// A block whose bytes do not match leaves the cache at once. A full queue is no error: the check is
// tried again later (seal, promotion) or at the next serve.
//
// THREADING: store thread. LIMITS: the constants below; promotions are bounded by their slots.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "daemon/residency.h"

namespace terrace {

class VerifierListener {
 public:
  virtual ~VerifierListener() = default;
  // Every part's checksum is known now: the block may leave DRAM.
  virtual void OnRooted(BlockId id) = 0;
  // The bytes a promotion brought have been compared.
  virtual void OnPromotionChecked(BlockId id, bool is_good) = 0;
  // Those of one step of a promotion by parts.
  virtual void OnStepChecked(BlockId id, uint32_t step, bool is_good) = 0;
};

class Verifier {
 public:
  static constexpr uint32_t kServedInFlightMax = 256;  // checked blocks cannot be evicted
  static constexpr uint32_t kRootsWaitingMax = 1 << 16;
  static constexpr uint32_t kRootsPerStepMax = 64;

  Verifier(CacheDomain& domain, Residency& residency) : d_(domain), residency_(residency) {}
  void SetListener(VerifierListener* listener) { listener_ = listener; }

  // After a seal: computes what the client did not say.
  void ComputeRoots(BlockId id);
  // Another process relies on the bytes; at most one check of a block at a time.
  void CheckServed(BlockId id);
  // The block's DRAM copy is Filling and all bytes are in. OnPromotionChecked follows.
  void CheckPromotion(BlockId id);

  // The same for the parts of one step (Group::step_count). OnStepChecked follows.
  void CheckStep(BlockId id, uint32_t step);

  // The job with this number (the low 48 bits of its OffloadId) is done.
  void OnChecksumsDone(uint64_t number, std::span<const Checksum> roots);
  // Submits what found the queue full. True if some are still waiting.
  bool Step();
  bool has_work() const { return !promotions_waiting_.empty() || !roots_waiting_.empty(); }
  bool is_idle() const { return !has_work() && jobs_.size() == free_jobs_.size(); }

 private:
  enum class Purpose : uint8_t { kRoots, kServed, kPromotion, kStep };
  struct Check {
    BlockId block = kBlockNone;
    Purpose purpose = Purpose::kRoots;
    uint32_t step = 0;  // of a kStep
  };
  struct Job {
    Check check;
    CommitId commit_id = 0;
    bool is_used = false;
  };

  struct Waiting {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
  };

  Status Start(BlockId id, Purpose purpose);
  Status Submit(const Check& check);
  // The parts of a member that the check is about: all, or those of its step.
  static PartRun PartsOf(const LocalMember& local, const Check& check);
  ChecksumJob Describe(const Check& check) const;
  // False if a root that was known differs; fills in the others.
  bool Compare(const Check& check, std::span<const Checksum> roots);
  void Conclude(const Check& check, bool is_good);

  CacheDomain& d_;
  Residency& residency_;
  VerifierListener* listener_ = nullptr;
  std::vector<Job> jobs_;
  std::vector<uint32_t> free_jobs_;
  // What found the queue full. Promotions hold their blocks; blocks without roots may be evicted.
  std::deque<Check> promotions_waiting_;
  std::deque<Waiting> roots_waiting_;
  uint32_t served_in_flight_ = 0;
};

}  // namespace terrace
