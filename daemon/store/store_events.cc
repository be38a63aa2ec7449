#include "daemon/store/store_events.h"

#include <algorithm>

#include "daemon/store/group_places.h"
#include "daemon/store/store_rooms.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kTickUs = 500'000;  // of tiers, which want one a second
constexpr uint32_t kExpiryWork = 2;    // of erasing a block, against looking one up

}  // namespace

StoreEvents::StoreEvents(StoreRooms& store) : store_(store) {
  for (const std::unique_ptr<DomainRooms>& rooms : store_.domains) {
    const DomainOptions& options = rooms->domain.options;
    if (rooms->domain.has_more_than_dram()) ArmTick(rooms->domain.domain_index);
    if (options.device.tier != nullptr) options.device.tier->Serve(this, this);
  }
}

void StoreEvents::ArmTick(uint32_t domain_index) {
  store_.deadlines.Add({.due_us = store_.clock.NowUs() + kTickUs,
                        .kind = DeadlineKind::kTick,
                        .domain_index = domain_index});
}

void StoreEvents::OnSegmentPopulated(uint32_t domain_index, uint32_t segment, Status status) {
  store_.segments.OnPopulated(domain_index, segment, status);
  store_.domains[domain_index]->room_waits.Wake();
}

void StoreEvents::OnSegmentPunched(uint32_t domain_index, uint32_t segment, Status status) {
  store_.segments.OnPunched(domain_index, segment, status);
}

void StoreEvents::OnChecksumsDone(OffloadId id, std::span<const Checksum> roots) {
  const uint64_t domain_index = id >> kDomainShift;
  TERRACE_CHECK(domain_index < store_.domains.size(), "an OffloadId names its domain");
  DomainRooms& rooms = *store_.domains[domain_index];
  const uint64_t number = id & ((uint64_t{1} << kDomainShift) - 1);
  if (number == Scrubber::kNumberBit) {
    rooms.scrubber.OnChecksumsDone(roots);
  } else if (number == Scrubber::kCheckNumberBit) {
    rooms.checker.OnChecksumsDone(roots);
  } else if (Relocations::IsNumber(number)) {
    rooms.relocations.OnChecksumsDone(number, roots);
  } else {
    rooms.verifier.OnChecksumsDone(number, roots);
  }
  rooms.verifier.Step();
  rooms.adoption.Step();
  store_.Settle(rooms);
}

void StoreEvents::OnGroupFilesChanged(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < store_.domains.size(),
                "whoever writes groups' files names their domain");
  DomainRooms& rooms = *store_.domains[domain_index];
  const GroupFiles* const files = rooms.domain.limits.group_files;
  for (uint32_t g = 0; files != nullptr && g < rooms.domain.groups.size(); ++g) {
    Group& group = *rooms.domain.groups[g];
    if (group.has_file && files->IsLost(domain_index, group.id())) group.has_file = false;
  }
  rooms.mover.OnGroupFilesChanged();
  store_.Settle(rooms);
}

void StoreEvents::RepublishKvEvents() {
  store_.BeginKvEventsAnew();
  for (const std::unique_ptr<DomainRooms>& rooms : store_.domains) store_.Settle(*rooms);
}

void StoreEvents::OnTransferDone(TransferId transfer_id, Status status) {
  const uint64_t domain_index = transfer_id >> kDomainShift;
  TERRACE_CHECK(domain_index < store_.domains.size(), "a TransferId names its domain");
  DomainRooms& rooms = *store_.domains[domain_index];
  const uint64_t number = transfer_id & ((uint64_t{1} << kDomainShift) - 1);
  if (number == Scrubber::kNumberBit) {
    rooms.scrubber.OnTransferDone(status);
  } else if (number == Scrubber::kCheckNumberBit) {
    rooms.checker.OnTransferDone(status);
  } else if (Relocations::IsNumber(number)) {
    rooms.relocations.OnTransferDone(number, status);
  } else {
    rooms.mover.OnTransferDone(number, status);
  }
  store_.Settle(rooms);
}

void StoreEvents::OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                              uint32_t member) {
  TERRACE_CHECK(domain_index < store_.domains.size(), "a record names its domain");
  store_.domains[domain_index]->residency.lower.EndPersist(owner, commit_id, member);
}

void StoreEvents::OnRecordInDoubt(uint32_t domain_index, uint32_t owner) {
  TERRACE_CHECK(domain_index < store_.domains.size(), "a record names its domain");
  DomainRooms& rooms = *store_.domains[domain_index];
  if (rooms.domain.block(owner).phase != BlockPhase::kSealed) return;  // soon freed, which tells
  rooms.residency.updates.Note(owner);
  store_.RetryBy(store_.clock.NowUs() + kRetryUs);
}

void StoreEvents::OnRoom(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < store_.domains.size(), "a tier names its domain");
  DomainRooms& rooms = *store_.domains[domain_index];
  rooms.relocations.OnRoom();
  rooms.mover.OnRoom();
  store_.Settle(rooms);
}

uint64_t StoreEvents::NowUs() const { return store_.clock.NowUs(); }

void StoreEvents::OnAnswered(uint32_t domain_index, TimedVerb verb, uint64_t took_us) {
  store_.at(domain_index).domain.counters.request_us[static_cast<size_t>(verb)].Add(took_us);
}

SharedTierListener& StoreEvents::shared_listener(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < store_.domains.size(), "a tier names its domain");
  return *store_.domains[domain_index];
}

void StoreEvents::OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                              std::span<const uint64_t> part_bytes) {
  store_.seams.listener.OnWorkOrder(executor, order, part_bytes);
}

void StoreEvents::OnTimer() {
  const uint64_t now_us = store_.clock.NowUs();
  store_.retry_us = kNever;
  store_.StepTurns();
  Deadline due;
  const uint64_t work_end = store_.work + protocol::kBlocksPerTurnMax;
  while (store_.work < work_end && store_.deadlines.PopDue(now_us, &due)) {
    ++store_.work;
    OnDeadline(due, now_us);
  }
  uint32_t drop_budget = BatchDrops::kTurnBudget;
  for (size_t i = 0, count = store_.domains.size(); i < count; ++i) {
    store_.domains[(drop_turn_ + i) % count]->mover.StepDrops(&drop_budget);
  }
  ++drop_turn_;
  for (const std::unique_ptr<DomainRooms>& rooms : store_.domains) {
    rooms->waiters.Step();
    rooms->verifier.Step();
    rooms->mover.Step();
    rooms->relocations.Step();
    rooms->adoption.Step();
    rooms->deferred_hits.Step();
    store_.Settle(*rooms);
  }
}

void StoreEvents::OnDeadline(const Deadline& due, uint64_t now_us) {
  DomainRooms& rooms = store_.at(due.domain_index);
  switch (due.kind) {
    case DeadlineKind::kSessionSilent:
      return OnSilence(rooms, due.id, now_us);
    case DeadlineKind::kPending:
      return rooms.waiters.OnDeadline(due.id);
    case DeadlineKind::kBlockExpiry:
      store_.work += kExpiryWork;
      return rooms.residency.lifecycle.Expire(due.id);
    case DeadlineKind::kPopulateRetry:
      return store_.segments.OnRetry(due.domain_index);
    case DeadlineKind::kDrain:
      return store_.segments.OnDrainTimer();
    case DeadlineKind::kSeek:
      return rooms.shared_reader.OnSeekDeadline(due.id);
    case DeadlineKind::kRoom:
      return rooms.room_waits.OnDeadline(due.id);
    case DeadlineKind::kNamedPin:
      return rooms.named_pins.OnDeadline(due.id);
    case DeadlineKind::kSharedCopy:
      return rooms.shared_writer.OnCopyDue(due.id);
    case DeadlineKind::kTick:
      return Tick(rooms, now_us);
  }
}

// Silent for its leases' time to live, or not: then it is looked at again when that passes next.
void StoreEvents::OnSilence(DomainRooms& rooms, SessionIndex session, uint64_t now_us) {
  SessionRecord& record = store_.sessions.at(session);
  record.deadline = kHandleNone;
  const uint64_t end_us = record.last_sign_us + store_.options.lease_ttl_ms * kUsPerMs;
  if (end_us <= now_us) {
    rooms.lease_manager.OnSilence(session);
  } else if (!record.leases.empty()) {
    record.deadline = store_.deadlines.Add({.due_us = end_us,
                                            .kind = DeadlineKind::kSessionSilent,
                                            .domain_index = rooms.domain.domain_index,
                                            .id = session});
  }
}

void StoreEvents::Tick(DomainRooms& rooms, uint64_t now_us) {
  rooms.shared_reader.Tick();
  rooms.shared_writer.Tick();
  rooms.mover.Tick();
  rooms.scrubber.Tick();
  rooms.checker.Tick();
  rooms.relocations.Tick();
  DropForgotten(rooms.domain);
  for (LowerTier& lower : rooms.domain.lower) {
    lower.written.Note(lower.tier->stats().written_bytes, now_us);
  }
  ArmTick(rooms.domain.domain_index);
}

uint64_t StoreEvents::NextTimerUs() const {
  for (const std::unique_ptr<DomainRooms>& rooms : store_.domains) {
    if (rooms->waiters.has_work() || rooms->lease_manager.has_work()) return 0;
    if (rooms->adoption.has_work() || rooms->deferred_hits.has_work()) return 0;
  }
  return std::min({store_.deadlines.next_us(), store_.retry_us, store_.turns.next_us()});
}

}  // namespace terrace
