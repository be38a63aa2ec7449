// Scrubber: reads what lies in the persistent tier, one member of one block after the other, and
// compares it with its checksums, so that bytes that rot are found before somebody asks for them.
// What does not verify, not even the second time, leaves the tier, and its place is suspect; if
// DRAM has the block it is written anew.
//
// It gives way: one read at a time, only while the tier has nothing else to do (or has been busy
// for kYieldUs), within a budget, into memory of its own, never into slots. When it has been over
// all blocks it rests, until an interval after it began; not where the tier has lost places since,
// as with files that somebody removed: whose they were is found by reading.
//
// Another one reads what a person asks for instead (Check): within that person's budget, giving way
// to nobody, and saying what it found instead of acting on it.
//
// THREADING: store thread. LIMITS: the constants below; memory of the largest member met so far.
// INVARIANT: the block under check is held as by any job.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/residency/residency.h"
#include "daemon/transfer/copy_findings.h"
#include "daemon/transfer/mover.h"

namespace terrace {

class Scrubber {
 public:
  // In the low 48 bits of its TransferIds and OffloadIds, where others have their job's number.
  static constexpr uint64_t kNumberBit = uint64_t{1} << 47;
  static constexpr uint64_t kCheckNumberBit = uint64_t{1} << 46;
  static constexpr uint64_t kBurstUs = 1'000'000;  // budget is not saved for longer
  static constexpr uint64_t kYieldUs = 1'000'000;
  static constexpr uint32_t kBlocksPerStepMax = 1024;  // looked at

  Scrubber(CacheDomain& domain, Residency& residency, Mover& mover, uint64_t number_bit)
      : d_(domain),
        residency_(residency),
        mover_(mover),
        number_bit_(number_bit),
        is_asked_(number_bit == kCheckNumberBit),
        budget_since_us_(domain.NowUs()),
        pass_since_us_(domain.NowUs()),
        last_read_us_(domain.NowUs()) {}
  ~Scrubber();

  // At least once a second.
  void Tick();
  // No read begins any more.
  void Stop() { is_stopped_ = true; }
  // Of kCheckNumberBit: reads these copies from the next Tick on. `done` is called once, in
  // the middle of other work. REQUIRES: no other check is under way, bytes_per_second > 0.
  void Check(std::vector<CopyName> asked, uint64_t bytes_per_second,
             std::function<void(CopyFindings)> done);
  // `done` is not called any more. What is being read is read to its end.
  void CancelCheck() {
    done_ = nullptr;
    is_abandoned_ = phase_ != Phase::kIdle;
  }
  bool is_checking() const { return done_ != nullptr; }
  void OnTransferDone(Status status);
  void OnChecksumsDone(std::span<const Checksum> roots);
  // How much longer it rests: 0 in a pass. UINT64_MAX: it never reads.
  uint64_t RestUs() const;

 private:
  enum class Phase : uint8_t {
    kIdle,
    kReading,
    kRead,  // the checksum queue was full
    kHashing,
  };
  enum class Verdict : uint8_t { kGood, kUnknown, kUnreadable, kBad };
  struct FreeMemory {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Memory = std::unique_ptr<std::byte, FreeMemory>;
  // Memory that a drive may still write to, for as long as the process lives.
  static void KeepForGood(Memory memory);

  Tier& tier() { return *d_.lower[d_.persistent_tier].tier; }
  const BlockCopy& copy() const { return d_.block(block_).lower[d_.persistent_tier]; }
  const LocalMember& member() const { return d_.group_of(d_.block(block_)).locals()[local_]; }
  void EarnBudget();
  void Step();
  bool MayRead();
  // To the next member that has bytes below. False if there is none among the next blocks.
  bool MoveOn();
  bool MoveOnAsked();
  // To the next member of the block under check that has bytes below.
  bool MoveToMember();
  void EndCheck();
  uint64_t rate_bytes() const {
    return is_asked_ ? asked_bytes_per_second_ : d_.options.scrub_bytes_per_second;
  }
  bool BeginRead();
  void BeginHashing();
  bool Verifies(std::span<const Checksum> roots) const;
  void EndMember(Verdict verdict);
  void EndAsked(Verdict verdict);
  void Retry();
  void GiveUpCopy();

  CacheDomain& d_;
  Residency& residency_;
  Mover& mover_;
  const uint64_t number_bit_;
  const bool is_asked_;  // it reads for a person, and nothing by itself
  Memory memory_;
  uint64_t memory_bytes_ = 0;
  // The member under check, or the one checked last.
  BlockId block_ = 0;
  uint32_t local_ = 0;
  bool is_fresh_ = true;   // not looked at yet
  bool is_again_ = false;  // it was bad, and is read once more
  Phase phase_ = Phase::kIdle;
  bool is_stopped_ = false;
  int64_t budget_bytes_ = 0;
  uint64_t budget_since_us_;
  bool has_read_ = false;      // in this pass: one over nothing is no reason to rest
  bool is_pass_over_ = false;  // and the next one has not begun
  uint64_t places_lost_ = 0;   // by the tier, as last seen
  bool is_next_due_ = false;   // without a rest: places were lost in this pass, or in the rest
  uint64_t pass_since_us_;
  uint64_t last_read_us_;
  // The check that a person asked for.
  bool is_abandoned_ = false;  // what is being read was asked for by one that was cancelled
  std::vector<CopyName> asked_;
  size_t asked_next_ = 0;  // the one under check
  uint64_t asked_bytes_per_second_ = 0;
  CopyFindings found_;
  std::function<void(CopyFindings)> done_;
};

}  // namespace terrace
