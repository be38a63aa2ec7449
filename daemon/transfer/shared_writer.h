// SharedWriter: gives one domain's blocks to the tier that hosts share, behind the commit. A
// Sealed, checksummed block is offered when it is sealed, and again when it is served while the
// tier does not have it. It waits by name, not by bytes: what leaves DRAM before its turn is not
// given.
//
// THREADING: store thread.
// LIMITS: SharedUse::queue_bytes_max of blocks waiting, beyond which the least wanted are dropped;
// kStoresInFlightMax blocks on their way; what the domain's share allows within the time that the
// tier keeps it, beyond which a block whose turn comes is not given, and offered again when it is
// served.
// INVARIANT: a block is held by a job while its bytes are read: they are neither freed nor moved.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <unordered_map>

#include "daemon/policy/recent_total.h"
#include "daemon/residency/residency.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

class SharedWriter {
 public:
  static constexpr uint32_t kStoresInFlightMax = 32;
  static constexpr uint32_t kOffersPerStepMax = 64;
  static constexpr uint32_t kQueuedMax = 1 << 18;

  SharedWriter(CacheDomain& domain, Residency& residency, Verifier& verifier)
      : d_(domain),
        residency_(residency),
        verifier_(verifier),
        given_(domain.options.shared.window_us) {}

  enum class Moment : uint8_t { kSealed, kServed };
  // What is not verified yet is verified, and offered again then.
  void Offer(BlockId id, Moment moment) {
    const SharedUse& use = d_.options.shared;
    if (use.tier != nullptr && use.is_storing) OfferToTier(id, moment);
  }
  void OnStored(TransferId transfer_id, Status status);
  // The tier may have dropped it by now: it is given again when it is served.
  void OnCopyDue(uint32_t copy);
  // Begins what the tier takes.
  void Step();
  // At least once a second.
  void Tick();
  // Somebody has the block erased: on the server, too.
  void Erase(BlockId id);
  // The same of those of the query's keys that nobody here has. kNoSpace: of too many, of none.
  Status EraseUnknown(const KeysQuery& query);
  // Nothing is found there, or given, of what the group has had until now.
  void Forget(uint32_t group_index);
  // The same of all groups, those that the server alone knows among them.
  void ForgetAll();
  void OnForgotten(const GroupId& group);
  // Nothing is on its way, and nothing waits that could go.
  bool is_idle() const;
  DomainStats::SharedStats stats() const;

 private:
  SharedMarks& MarksOf(BlockId id) { return d_.blocks.Change<SharedMarks>(id, {}); }
  struct Offered {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
    uint64_t byte_count = 0;
  };
  struct Job {
    BlockKey run;
    uint64_t byte_count = 0;
    uint32_t next_local = 0;  // the first member that has not begun
    uint32_t in_flight_count = 0;
    uint64_t begun_us = 0;
    bool is_failed = false;
    bool is_existing = false;
    bool is_erased = false;  // there, behind this
  };

  void OfferToTier(BlockId id, Moment moment);
  bool IsToGive(BlockId id) const;
  bool MayGive(BlockId id) const { return d_.block(id).is_verified && IsToGive(id); }
  // It was here when its group was forgotten.
  bool IsOfBefore(const Block& b) const;
  void EraseUnknownOf(const Group& group, uint32_t group_index, KeysQuery query,
                      std::span<const size_t> unknown);
  bool MakeRoom(uint64_t byte_count, uint8_t priority);
  bool TakeNext(Offered* offered);
  // False if the tier takes no more for now.
  bool Begin(BlockId id, Job* job);
  void FinishIfDone(BlockId id);
  void EndStored(BlockId id, const Job& job);
  // The domain's share takes so much more. Notes what it holds now.
  bool HasShareFor(uint64_t byte_count);
  void NoteShare();

  CacheDomain& d_;
  Residency& residency_;
  Verifier& verifier_;
  // By priority, the most wanted first; each in the order they were offered, parents first.
  std::map<uint8_t, std::deque<Offered>, std::greater<>> queue_;
  std::unordered_map<BlockId, Job> jobs_;  // looked up only, never walked
  std::deque<BlockId> begun_;              // jobs with members still to begin
  uint64_t connections_lost_ = 0;          // at the last Tick
  uint64_t begun_anew_ = 0;                // likewise
  // Groups that were forgotten when there was none of them here; beyond so many, all.
  static constexpr size_t kForgottenUnopenedMax = 65'536;
  std::set<GroupId> forgotten_unopened_;
  bool were_too_many_forgotten_ = false;
  RecentTotal given_;  // bytes
  uint64_t given_bytes_ = 0;
  uint64_t under_way_bytes_ = 0;
  DomainStats::SharedStats counts_;
};

}  // namespace terrace
