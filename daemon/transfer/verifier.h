// Verifier: the checksums of slot bytes, computed by other threads, and what follows from them.
// What a client says of its bytes is a claim. A sealed block is *verified* once the daemon has
// compared the bytes with it (or, where the client said nothing, has checksums of its own); only
// then may it leave DRAM or be read under another uid. It is compared once, when somebody needs it;
// a promoted block is compared before it becomes readable.
//
// A block whose bytes do not match leaves the cache at once. A full queue is no error: the check is
// tried again later, or at the next serve.
//
// THREADING: store thread.
// LIMITS: the constants below; promotions are bounded by their slots, what readers wait for by
// their leases.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "daemon/residency/residency.h"
#include "src/slot_pool.h"

namespace terrace {

class VerifierListener {
 public:
  virtual ~VerifierListener() = default;
  // The block may leave DRAM.
  virtual void OnVerified(BlockId id) = 0;
  // Fetched from the tier that hosts share, and verified.
  virtual void OnFetched(BlockId id) = 0;
  // The bytes a promotion brought have been compared.
  virtual void OnPromotionChecked(BlockId id, bool is_good) = 0;
  // Those of one step of a promotion by parts.
  virtual void OnStepChecked(BlockId id, uint32_t step, bool is_good) = 0;
};

class Verifier {
 public:
  static constexpr uint32_t kServedInFlightMax = 256;  // checked blocks cannot be evicted
  // Checks that nobody waits for: promotions and readers queue behind so many, however many blocks
  // are stored. One block at least.
  static constexpr uint32_t kUnaskedInFlightMax = 64;
  static constexpr int64_t kUnaskedBytesInFlightMax = 16 * kMiB;
  static constexpr uint32_t kWaitingMax = 1 << 16;
  static constexpr uint32_t kWaitingPerStepMax = 64;

  Verifier(CacheDomain& domain, Residency& residency) : d_(domain), residency_(residency) {}
  void SetListener(VerifierListener* listener) { listener_ = listener; }

  // These do nothing to a block that is verified or in check; OnVerified follows, or the block is
  // erased.
  // The block is to leave DRAM, or its client gave no checksums.
  void Verify(BlockId id);
  // A reader who may not see unverified bytes waits. REQUIRES: a lease holds the block.
  void VerifyForReader(BlockId id);
  // The block has to leave DRAM now. False if no check could be begun.
  bool VerifyToLeave(BlockId id);
  // Another process of the writer's uid relies on the bytes.
  void CheckServed(BlockId id);
  // The block's DRAM copy is Filling and all bytes are in. OnPromotionChecked follows.
  void CheckPromotion(BlockId id);

  // The same for the parts of one step (Group::step_count). OnStepChecked follows.
  void CheckStep(BlockId id, uint32_t step);

  // The job with this number (the low 48 bits of its OffloadId) is done.
  void OnChecksumsDone(uint64_t number, std::span<const Checksum> roots);
  // Submits what found the queue full. True if some are still waiting.
  bool Step();
  bool has_work() const {
    return !promotions_waiting_.empty() || !readers_waiting_.empty() || !waiting_.empty();
  }
  bool is_idle() const { return !has_work() && jobs_.count() == 0; }

 private:
  enum class Purpose : uint8_t { kUnasked, kReader, kServed, kPromotion, kStep };
  struct Check {
    BlockId block = kBlockNone;
    Purpose purpose = Purpose::kUnasked;
    uint32_t step = 0;  // of a kStep
  };
  struct Job {
    Check check;
    CommitId commit_id = 0;
    bool was_lost = false;  // some of it, when it was begun
  };

  struct Waiting {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
  };

  CheckMarks& MarksOf(BlockId id) { return d_.blocks.Change<CheckMarks>(id, {}); }
  // kBusy: the queue is full. The block is held while its bytes are read.
  Status Start(BlockId id, Purpose purpose);
  bool may_start_unasked() const {
    return unasked_in_flight_ < kUnaskedInFlightMax &&
           unasked_bytes_in_flight_ < kUnaskedBytesInFlightMax;
  }
  void CountInFlight(const Check& check, int32_t by);
  bool StepWaiting(std::deque<Waiting>* waiting, Purpose purpose);
  void Refute(BlockId id);
  Status Submit(const Check& check);
  // The parts of a member that the check is about: all, or those of its step.
  static PartRun PartsOf(const LocalMember& local, const Check& check);
  ChecksumJob Describe(const Check& check) const;
  bool HasLost(BlockId id) const;
  // False if a root that was known differs; fills in the others.
  bool Compare(const Check& check, std::span<const Checksum> roots);
  void Conclude(const Check& check, bool is_good);

  CacheDomain& d_;
  Residency& residency_;
  VerifierListener* listener_ = nullptr;
  SlotPool<Job> jobs_;
  // What found the queue full. Promotions hold their blocks; others may be evicted meanwhile.
  std::deque<Check> promotions_waiting_;
  std::deque<Waiting> readers_waiting_;
  std::deque<Waiting> waiting_;
  uint32_t served_in_flight_ = 0;
  uint32_t unasked_in_flight_ = 0;
  int64_t unasked_bytes_in_flight_ = 0;
};

}  // namespace terrace
