// StoreRooms: the rooms of every domain and what the verbs share: sessions, deadlines, segments,
// turns. The faces of the Store (prefix_verbs.h, storing_verbs.h, …) are made of it; it is theirs
// alone.
//
// THREADING: the store thread. OWNERSHIP: the Store's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/kv_event_source.h"
#include "daemon/block/session_register.h"
#include "daemon/lease/erasure_waits.h"
#include "daemon/lease/lease_manager.h"
#include "daemon/lease/registration_turns.h"
#include "daemon/lease/room_waits.h"
#include "daemon/lease/waiters.h"
#include "daemon/residency/evictor.h"
#include "daemon/residency/residency.h"
#include "daemon/residency/segment_broker.h"
#include "daemon/restore/adoption.h"
#include "daemon/restore/restorer.h"
#include "daemon/rule/named_pins.h"
#include "daemon/rule/unindexed_eviction.h"
#include "daemon/store/deferred_hits.h"
#include "daemon/store/operation.h"
#include "daemon/transfer/mover.h"
#include "daemon/transfer/relocations.h"
#include "daemon/transfer/scrubber.h"
#include "daemon/transfer/shared_reader.h"
#include "daemon/transfer/shared_writer.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

// When to ask again for what a full queue refused.
inline constexpr uint64_t kRetryUs = 1'000;

// One domain and those who work on it.
struct DomainRooms final : SharedTierListener {
  DomainRooms(uint32_t domain_index, const DomainOptions& options, const StoreOptions& limits,
              const StoreSeams& seams, SessionRegister& sessions);

  CacheDomain domain;
  Residency residency;
  Evictor evictor;
  PendingRegister pending;
  Waiters waiters;
  ErasureWaits erasures;
  LeaseManager lease_manager;
  Verifier verifier;
  Mover mover;
  Scrubber scrubber;
  Scrubber checker;  // of what a person asks for
  Relocations relocations;
  Adoption adoption;
  UnindexedEviction unindexed;
  SharedWriter shared_writer;
  SharedReader shared_reader;
  DeferredHits deferred_hits;
  RoomWaits room_waits;
  NamedPins named_pins;
  KvEventSource kv_events;
  std::unique_ptr<Restorer> restorer;  // only while the store is being restored
  std::function<void()> settle;        // after an answer of the shared tier

  // No block is being hashed or moved or waits for either, and what is below is persisted.
  bool is_settled() const;
  // Nothing is on its way to the shared tier, and nothing waits that could go.
  bool is_shared_idle() const { return verifier.is_idle() && shared_writer.is_idle(); }

  void OnSharedFetched(TransferId transfer_id, Status status, const BlockRecord& record) override;
  void OnSharedStored(TransferId transfer_id, Status status) override;
  void OnSharedForgotten(const GroupId& group) override;
  void OnSharedProbed(uint64_t probe_id, Status status,
                      const std::vector<bool>& is_present) override;
};

// Who asks, and where.
struct Caller {
  DomainRooms* rooms = nullptr;
  Group* group = nullptr;
  SessionIndex session = kSessionNone;
  uint32_t uid = 0;

  CacheDomain& domain() const { return rooms->domain; }
};

struct StoreRooms {
  StoreRooms(StoreOptions options, Clock& clock, Random& random, Offload& offload,
             StoreListener& listener);
  StoreRooms(const StoreRooms&) = delete;
  StoreRooms& operator=(const StoreRooms&) = delete;

  // The session's rooms and, unless `group_index` is kAllGroups, group. A sign of life.
  // kGone: no such session; kInvalid: no such group.
  Status Enter(SessionId session, uint32_t group_index, Caller* caller);
  void SignOfLife(SessionRecord& record);
  // The session leaves a lease that it was never told of. Nothing if it has hung up: that fences.
  void LeaveUntold(SessionId session, const LeaseToken& token);
  // Work that a verb left over, as far as this turn allows.
  void Settle(DomainRooms& rooms);
  void RetryBy(uint64_t due_us);
  // Routers are told of every block of all domains anew, in the turns that follow.
  void BeginKvEventsAnew();
  void EndKvEventsAnew();
  void StepKvEvents(DomainRooms& rooms);
  // Has memory found that the domain's next blocks will need.
  void PopulateAhead(DomainRooms& rooms);
  // The next session's turn to register memory begins, if it can.
  void StepTurns();

  uint64_t DeadlineUs(const protocol::Hints& hints) const;
  // Of an Acquire or Prefetch: when it must be answered, whatever is still to come.
  uint64_t AnswerDueUs(const protocol::Hints& hints) const;
  // What can be tuned (CopyTunable) is from now on as these say; of as many domains.
  void Retune(const StoreOptions& tuned);
  // REQUIRES: there is such a domain.
  DomainRooms& at(uint32_t domain_index) const;

  StoreOptions options;  // changed by Retune alone
  Clock& clock;
  DeadlineHeap deadlines;
  uint64_t work = 0;  // StoreSeams::work
  StoreSeams seams;
  SessionRegister sessions;
  std::vector<std::unique_ptr<DomainRooms>> domains;
  SegmentBroker segments;
  RegistrationTurns turns;
  uint64_t retry_us = kNever;             // when to offer again what a full queue refused
  KvEventSink* kv_events_anew = nullptr;  // who is being told of every block anew
  OperationList operations{*this};        // under way
};

}  // namespace terrace
