// StoreEvents: what reaches the store from elsewhere: time, tiers, checksums, memory, the files of
// groups. Other threads post; the store thread calls.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/block/deadline_heap.h"
#include "daemon/block/domain_stats.h"
#include "daemon/block/lease_table.h"
#include "daemon/block/seams.h"
#include "daemon/block/store_listener.h"
#include "terrace/status.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/shared_tier.h"
#include "tiers/tier.h"

namespace terrace {

struct DomainRooms;
struct StoreRooms;

class StoreEvents final : public TierListener, public WorkOrderSink {
 public:
  explicit StoreEvents(StoreRooms& store);

  void OnSegmentPopulated(uint32_t domain_index, uint32_t segment, Status status);
  void OnSegmentPunched(uint32_t domain_index, uint32_t segment, Status status);
  void OnChecksumsDone(OffloadId id, std::span<const Checksum> roots);
  // A group's spec was written, or could not be.
  void OnGroupFilesChanged(uint32_t domain_index);
  // Routers lost what they had been told: every block is told of anew.
  void RepublishKvEvents();
  // Deadlines, time to live, expiry, background moves. Call when NextTimerUs() has passed.
  void OnTimer();
  // Monotonic microseconds of the next OnTimer, UINT64_MAX for never.
  uint64_t NextTimerUs() const;
  uint64_t NowUs() const;
  // A request is answered.
  void OnAnswered(uint32_t domain_index, TimedVerb verb, uint64_t took_us);
  // Who hears of a domain's tier that hosts share.
  SharedTierListener& shared_listener(uint32_t domain_index);

  void OnTransferDone(TransferId transfer_id, Status status) override;
  void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                   uint32_t member) override;
  void OnRecordInDoubt(uint32_t domain_index, uint32_t owner) override;
  void OnRoom(uint32_t domain_index) override;
  void OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                   std::span<const uint64_t> part_bytes) override;

 private:
  void OnDeadline(const Deadline& due, uint64_t now_us);
  void OnSilence(DomainRooms& rooms, SessionIndex session, uint64_t now_us);
  void Tick(DomainRooms& rooms, uint64_t now_us);
  void ArmTick(uint32_t domain_index);

  StoreRooms& store_;
  size_t drop_turn_ = 0;  // the domain whose copies that leave together go first
};

}  // namespace terrace
