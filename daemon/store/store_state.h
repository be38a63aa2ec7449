// The Store's own: the rooms of each domain, and what the verbs share. Private to store*.cc.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/kv_event_source.h"
#include "daemon/block/session_register.h"
#include "daemon/lease/lease_keeper.h"
#include "daemon/lease/registration_turns.h"
#include "daemon/lease/room_waits.h"
#include "daemon/lease/waiters.h"
#include "daemon/residency/evictor.h"
#include "daemon/residency/residency.h"
#include "daemon/residency/segment_ledger.h"
#include "daemon/store/adoption.h"
#include "daemon/store/hit_notes.h"
#include "daemon/store/restorer.h"
#include "daemon/store/store.h"
#include "daemon/transfer/mover.h"
#include "daemon/transfer/scrubber.h"
#include "daemon/transfer/shared_reader.h"
#include "daemon/transfer/shared_writer.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

// One domain and those who work on it.
struct DomainRooms final : SharedTierListener {
  DomainRooms(uint32_t domain_index, const DomainOptions& options, const StoreOptions& limits,
              const StoreSeams& seams, SessionRegister& sessions);

  CacheDomain domain;
  Residency residency;
  Evictor evictor;
  Waiters waiters;
  LeaseKeeper keeper;
  Verifier verifier;
  Mover mover;
  Scrubber scrubber;
  Scrubber checker;  // of what a person asks for
  Adoption adoption;
  SharedWriter shared_writer;
  SharedReader shared_reader;
  HitNotes notes;
  RoomWaits room_waits;
  KvEventSource kv_events;
  std::unique_ptr<Restorer> restorer;  // only while the store is being restored
  std::function<void()> settle;        // after an answer of the shared tier

  void OnSharedFetched(TransferId transfer_id, Status status, const BlockRecord& record) override;
  void OnSharedStored(TransferId transfer_id, Status status) override;
  void OnSharedForgotten(const GroupId& group) override { shared_writer.OnForgotten(group); }
  void OnSharedProbed(uint64_t probe_id, Status status,
                      const std::vector<bool>& is_present) override;
};

// Who asks, and where.
struct Caller {
  DomainRooms* rooms = nullptr;
  Group* group = nullptr;
  SessionIndex session = kSessionNone;

  CacheDomain& domain() const { return rooms->domain; }
};

// What a reader may see of a block.
enum class Found : uint8_t {
  kNothing,
  kReady,     // readable in DRAM
  kToVerify,  // likewise, as soon as its bytes have been compared with another user's checksums
  kFilling,   // a promotion is under way
  kBelow,     // in a lower tier, or in DRAM and not verified yet
  kReserved,  // being written
  kOnDevice,  // readable in the memory of the caller's device
};

struct Store::State final : public TierListener, public WorkOrderSink {
  State(StoreOptions options, Clock& clock, Random& random, Offload& offload,
        StoreListener& listener);

  // The session's rooms and, unless `group_index` is kAllGroups, group. A sign of life.
  // kGone: no such session; kInvalid: no such group.
  Status Enter(SessionId session, uint32_t group_index, Caller* caller);
  void SignOfLife(SessionRecord& record);
  // Work that a verb left over, as far as this turn allows.
  void Settle(DomainRooms& rooms);
  void ArmTick(uint32_t domain_index);
  uint64_t DeadlineUs(const protocol::Hints& hints) const;
  // Of an Acquire or Prefetch: when it must be answered, whatever is still to come.
  uint64_t AnswerDueUs(const protocol::Hints& hints) const;

  // What a block is to the caller.
  Found Judge(const Caller& caller, BlockId id) const;
  // Where a block that is found kFilling or kBelow comes from, and when, behind `ahead_bytes`.
  struct Coming {
    protocol::TierKind tier = protocol::TierKind::kDram;
    uint32_t eta_us = 0;
  };
  Coming ComingFrom(const DomainRooms& rooms, BlockId id, uint64_t ahead_bytes) const;
  // Members with bytes in the copy that a reader would get.
  static uint64_t MembersOf(const CacheDomain& domain, const Block& block);

  // store_insight.cc: what is told to the domain's HitMeter.
  static void CountAsked(const Caller& caller, const KeysQuery& query);
  void CountMisses(const Caller& caller, const KeysQuery& query, std::span<const BlockKey> missed,
                   AcquireMisses* misses) const;
  static void CountAnswer(const Caller& caller, const KeysQuery& query,
                          const AcquireResult& result);
  protocol::MissCause CauseOf(const Caller& caller, uint32_t group_index,
                              const BlockKey& key) const;

  void OnTransferDone(TransferId transfer_id, Status status) override;
  void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                   uint32_t member) override;
  void OnRecordInDoubt(uint32_t domain_index, uint32_t owner) override;
  void OnRoom(uint32_t domain_index) override;
  void OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                   std::span<const uint64_t> part_bytes) override;

  DomainStats::CopyStats CopyStatsOf(uint32_t domain_index) const;  // store_device.cc
  // The next turn begins, if it can.
  void StepTurns();

  const StoreOptions options;
  Clock& clock;
  DeadlineHeap deadlines;
  uint64_t work = 0;  // StoreSeams::work
  StoreSeams seams;
  SessionRegister sessions;
  std::vector<std::unique_ptr<DomainRooms>> domains;
  SegmentLedger ledger;
  RegistrationTurns turns;
  uint64_t retry_us = kNever;  // when to offer again what a full queue refused
};

// Opens a group that the domain does not have: in place of `idle`, unless that is kAllGroups. Its
// index; else *why says what to do about it.
Result<uint32_t> AddGroup(CacheDomain& domain, const SpaceGroupSpec& spec, uint32_t idle,
                          std::string* why);

// Appends block `index` to spans that compress what is alike.
void AppendToSpans(protocol::BlockSpan span, std::vector<protocol::BlockSpan>* spans);
// Where the members of `member_mask` lie on the device. REQUIRES: CacheDomain::IsOnDevice.
void AppendDeviceSlots(const Group& group, const CacheDomain& domain, const Block& block,
                       uint64_t member_mask, std::vector<SlotAddress>* slots);
// Cuts spans to the first `block_count` blocks.
void TrimSpans(uint32_t block_count, std::vector<protocol::BlockSpan>* spans);
// The next block of a prefix has bytes of `member_mask`. False if it ends the prefix.
bool WalkOn(const Group& group, uint64_t member_mask, PrefixWalk* walk);

}  // namespace terrace
