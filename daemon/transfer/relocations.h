// Relocations: copies of blocks that are moved within the persistent tier, out of slabs that go
// because the tier is to be smaller. What is wanted least leaves, wherever it lies, as room is
// needed; the rest is read, compared with its checksums, written to a slab that stays, and read
// there once that outlives even a loss of power. Only then is the old place freed: at every moment
// a successor finds one of the two, and of two the one that was written last.
//
// It is work in the background, within a budget, into memory of its own, never into slots. What it
// cannot move for kPatienceUs (no room for what is pinned, bytes that do not verify, a drive that
// is off) is given as before: it leaves.
//
// THREADING: store thread. LIMITS: the constants below; kLanes times the largest member met so far.
// INVARIANT: a block that is being moved is held as by any job, once.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "daemon/residency/evictor.h"
#include "daemon/residency/residency.h"

namespace terrace {

class Relocations {
 public:
  // In the low 48 bits of its TransferIds and OffloadIds, with the lane.
  static constexpr uint64_t kNumberBit = uint64_t{1} << 45;
  static constexpr uint32_t kLanes = 4;        // blocks that are being copied
  static constexpr uint32_t kMovesMax = 4096;  // copied, and not yet durable
  static constexpr uint64_t kBytesPerSecond = 256 * kMiB;
  static constexpr uint64_t kPatienceUs = 10'000'000;
  static constexpr uint64_t kDurableUs = 60'000'000;  // then a copy is given up
  static constexpr uint32_t kLooksPerStepMax = 1024;
  static constexpr uint32_t kEndsPerStepMax = 64;

  Relocations(CacheDomain& domain, Residency& residency, Evictor& evictor);
  ~Relocations();

  static bool IsNumber(uint64_t number) { return (number & ~uint64_t{kLanes - 1}) == kNumberBit; }

  // At least once a second.
  void Tick();
  // The tier may have room now.
  void OnRoom() { is_room_awaited_ = false; }
  // Ends what is durable, and begins what may begin.
  void Step();
  bool has_work() const;
  // Nothing more begins.
  void Stop() { is_stopped_ = true; }
  void OnTransferDone(uint64_t number, Status status);
  void OnChecksumsDone(uint64_t number, std::span<const Checksum> roots);

 private:
  struct Place {
    uint32_t local = 0;
    Extent to;
  };
  struct Move {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
    std::vector<Place> places;
    size_t next = 0;                        // of places: what is being copied
    std::vector<BlockDescription> written;  // what the records say, by place
    uint64_t copied_us = 0;
  };
  // What a lane waits for. kRead and kVerified: for a queue that was full.
  enum class Phase : uint8_t { kIdle, kTaken, kReading, kRead, kHashing, kVerified, kWriting };
  struct FreeMemory {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  struct Lane {
    Phase phase = Phase::kIdle;
    Move move;
    std::unique_ptr<std::byte, FreeMemory> memory;
    uint64_t memory_bytes = 0;
  };
  // What comes of asking for a block to be moved.
  enum class Outcome : uint8_t { kBegun, kPassedOver, kDropped, kLater };

  Tier& tier() const { return *d_.lower[tier_].tier; }
  uint64_t NumberOf(const Lane& lane) const;
  const LocalMember& MemberOf(const Lane& lane) const;
  bool IsCurrent(const Move& move) const;
  void EarnBudget();
  bool MayBegin() const;
  bool Refill();
  Outcome Begin(BlockId id, Lane& lane);
  Status TakePlaces(BlockId id, std::vector<Place>* places);
  void Read(Lane& lane);
  void Hash(Lane& lane);
  void Write(Lane& lane);
  void GoOn(Lane& lane);
  void Fail(Lane& lane);
  void GiveUp(const Move& move);
  void LookAtCopied();
  void End(const Move& move);

  CacheDomain& d_;
  Residency& residency_;
  Evictor& evictor_;
  const uint32_t tier_;  // kLowerTiersMax: nothing is persistent
  std::array<Lane, kLanes> lanes_;
  std::deque<BlockId> owners_;  // to be looked at
  bool has_more_owners_ = false;
  bool is_room_awaited_ = false;
  bool is_stopped_ = false;
  std::deque<Move> copied_;
  std::deque<Move> durable_;
  int64_t budget_bytes_ = 0;
  uint64_t budget_since_us_;
  uint64_t progress_us_;  // the last time that there was some, or nothing to be done
};

}  // namespace terrace
