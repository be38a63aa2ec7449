// SharedReader: takes blocks for one domain from the tier that hosts share. Two steps: a *Seek*
// asks the tier once which of the keys that nobody here knows may be there; then an Acquire or
// Prefetch begins *expected* blocks for those: Sealed, without any copy. With slots they are
// *arriving*: the DRAM copy is Filling and everybody who wants it shares it, as with a promotion.
// Bytes that match the checksums that came with them make a block like any other; else it is gone
// as if it had never been, and the prefix ends there.
//
// Work is abandoned, never cancelled: what nobody waits for any more is not begun.
//
// THREADING: store thread. LIMITS: the constants below; arriving blocks are bounded by the slots
// they fill.
// INVARIANT: an arriving block is held by a job.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/residency/evictor.h"
#include "daemon/residency/residency.h"
#include "daemon/transfer/shared_findings.h"
#include "daemon/transfer/shared_names.h"
#include "daemon/transfer/verifier.h"
#include "src/slot_pool.h"

namespace terrace {

class SharedReader {
 public:
  static constexpr uint32_t kSeeksMax = 256;
  static constexpr uint32_t kSeekNamesMax = 4096;
  static constexpr uint32_t kSeekWaitersMax = 4096;

  // `listener` is told of blocks that have arrived.
  SharedReader(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier,
               VerifierListener& listener);

  // Asks for keys[from_index] and those behind it, of which the index does not know the first. kOk:
  // there is nothing to wait for. kBusy: StoreListener::OnSeekDone follows, when `until_us` has
  // come at the latest.
  Status Seek(const KeysQuery& query, size_t from_index, uint64_t until_us);
  void OnSeekDeadline(uint32_t seek);
  // Expected blocks for query.keys[from_index] and those behind it, at most `count_max`, as far as
  // the tier may have them and fetching is faster than computing them. Each must be fetched or
  // given up before the turn ends.
  std::vector<BlockId> Expect(const KeysQuery& query, size_t from_index, BlockId parent,
                              size_t count_max);
  void GiveUp(BlockId id);
  // Takes slots for an expected block and has the bytes come; after kOk OnBlockReady or OnBlockLost
  // follows.
  Status Fetch(BlockId id);
  // The bytes of an arriving block have been compared.
  void EndFetch(BlockId id, bool is_good);

  void OnProbed(uint64_t probe_id, Status status, const std::vector<bool>& is_present);
  void OnFetched(TransferId transfer_id, Status status, const BlockRecord& record);
  // Begins what the tier takes.
  void Step();
  // Bytes of arriving blocks that the tier has not taken yet: all, and those up to a block's own,
  // if it is among them.
  uint64_t waiting_bytes() const { return asked_bytes_ - begun_bytes_; }
  uint64_t WaitingBytesTo(BlockId id) const;
  // At least once a second.
  void Tick();
  void AddStats(DomainStats::SharedStats* stats) const;

 private:
  struct Waiter {
    SessionId session = 0;
    uint64_t request_id = 0;
  };
  struct SeekJob {
    GroupId group;
    std::vector<SpaceId> spaces;  // of the local members
    std::vector<uint64_t> member_bits;
    uint64_t full_mask = 0;
    std::vector<SharedPlace> sought;
    std::vector<Waiter> waiters;
    uint64_t until_us = 0;
    uint32_t deadline = kHandleNone;
    uint32_t stamp = 0;
  };
  struct Arrival {
    SharedFinding finding;
    uint32_t next_local = 0;  // the first member that has not begun
    uint32_t in_flight_count = 0;
    uint64_t asked_mark = 0;  // asked_bytes_ when it was asked for, with it
    bool is_cancelled = false;
    bool is_failed = false;
    bool is_missed = false;  // it is not there, or of no use
    bool is_mixed = false;   // its members are of two commits
    // From the first member's record.
    CommitId commit_id = 0;
    uint64_t event_hash = 0;
    uint64_t expires_at_s = 0;
    uint32_t recompute_ns_per_token = 0;
    uint8_t priority = 0;
  };

  bool is_on() const;
  // False, and counted, if computing so many blocks is faster than fetching them.
  bool IsWorth(const KeysQuery& query, size_t block_count);
  bool JoinSeek(const KeysQuery& query, const BlockKey& first, uint64_t until_us);
  void TellWaiters(SeekJob& seek);
  void Remember(const SeekJob& seek, const std::vector<bool>& is_present);
  bool Begin(BlockId id, Arrival* arrival);
  bool Accept(BlockId id, uint32_t local_index, const BlockRecord& record, Arrival* arrival);
  void FinishIfDone(BlockId id);
  void Publish(BlockId id, const Arrival& arrival);
  void EraseMixed(BlockId id, const SharedFinding& finding);
  // The tier does not have it.
  void ForgetCopy(BlockId id);
  // An arriving block does not come.
  void Lose(BlockId id);

  CacheDomain& d_;
  Residency& residency_;
  Evictor& evictor_;
  Verifier& verifier_;
  VerifierListener& listener_;
  SlotPool<SeekJob> seeks_;
  uint32_t seek_count_ = 0;  // so far: the stamps
  SharedFindings findings_;
  std::unordered_map<BlockId, Arrival> arrivals_;  // of expected and arriving blocks
  std::deque<BlockId> begun_;                      // with members still to begin
  uint64_t asked_bytes_ = 0, begun_bytes_ = 0;     // since the start
  DomainStats::SharedStats counts_;
};

}  // namespace terrace
