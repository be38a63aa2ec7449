#include "daemon/store/store_rooms.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kErasureLookUs = 10'000;

}  // namespace

DomainRooms::DomainRooms(uint32_t domain_index, const DomainOptions& options,
                         const StoreOptions& limits, const StoreSeams& seams,
                         SessionRegister& sessions)
    : domain(domain_index, options, limits, seams),
      residency(domain),
      evictor(domain, residency),
      pending(domain),
      waiters(domain, residency, pending),
      erasures(domain, pending, waiters),
      lease_manager(domain, residency, waiters, sessions),
      verifier(domain, residency),
      mover(domain, residency, evictor, verifier),
      scrubber(domain, residency, mover, Scrubber::kNumberBit),
      checker(domain, residency, mover, Scrubber::kCheckNumberBit),
      relocations(domain, residency, evictor),
      adoption(domain, residency, mover),
      unindexed(domain, adoption),
      shared_writer(domain, residency, verifier),
      shared_reader(domain, residency, evictor, verifier, mover),
      deferred_hits(domain, residency, verifier, shared_writer),
      room_waits(domain),
      named_pins(domain, residency.holds),
      kv_events(domain) {
  mover.SetShared(&shared_writer, &shared_reader);
  residency.observers.waiting = &waiters;
  residency.observers.pins = &named_pins;
  if (options.kv_events != nullptr) residency.observers.kv_events = &kv_events;
  evictor.SetWriter(&mover);
  verifier.SetListener(&mover);
}

StoreRooms::StoreRooms(StoreOptions store_options, Clock& clock_seam, Random& random,
                       Offload& offload, StoreListener& listener)
    : options(std::move(store_options)),
      clock(clock_seam),
      seams{clock_seam, random, offload, listener, deadlines, work},
      sessions(options.sessions, static_cast<uint32_t>(options.domains.size())),
      segments(options, seams, sessions) {
  TERRACE_CHECK(options.fenced_bytes_max > 0, "zero never means unlimited: fenced_bytes_max");
  for (uint32_t i = 0; i < options.domains.size(); ++i) {
    TERRACE_CHECK(options.domains[i].arena != nullptr && options.domains[i].segments_max > 0,
                  "a domain has an arena");
    domains.push_back(
        std::make_unique<DomainRooms>(i, options.domains[i], options, seams, sessions));
    domains[i]->settle = [this, rooms = domains[i].get()] { Settle(*rooms); };
    segments.AddDomain(&domains[i]->domain, &domains[i]->evictor);
    for (const uint32_t segment : options.domains[i].populated_segments) {
      segments.AdoptPopulated(i, segment);
    }
  }
}

void StoreRooms::Retune(const StoreOptions& tuned) {
  TERRACE_CHECK(tuned.domains.size() == domains.size(), "domains come and go with a restart");
  const std::string admission_before = options.admission_policy;
  CopyTunable(tuned, &options);
  sessions.SetLimits(tuned.sessions);
  for (size_t i = 0; i < domains.size(); ++i) {
    domains[i]->domain.Retune(tuned.domains[i], admission_before);
  }
  segments.OnRetuned();
}

DomainRooms& StoreRooms::at(uint32_t domain_index) const {
  TERRACE_CHECK(domain_index < domains.size(), "there is such a domain");
  return *domains[domain_index];
}

void StoreRooms::RetryBy(uint64_t due_us) { retry_us = std::min(retry_us, due_us); }

void StoreRooms::SignOfLife(SessionRecord& record) {
  record.last_sign_us = clock.NowUs();
  if (record.deadline != kHandleNone || record.is_hung_up || record.leases.empty()) return;
  record.deadline = deadlines.Add({.due_us = record.last_sign_us + options.lease_ttl_ms * kUsPerMs,
                                   .kind = DeadlineKind::kSessionSilent,
                                   .domain_index = record.domain_index,
                                   .id = sessions.Find(record.id)});
}

Status StoreRooms::Enter(SessionId session, uint32_t group_index, Caller* caller) {
  caller->session = sessions.Find(session);
  if (caller->session == kSessionNone || sessions.at(caller->session).is_hung_up) {
    return Status(StatusCode::kGone, "the session has ended");
  }
  SessionRecord& record = sessions.at(caller->session);
  SignOfLife(record);
  caller->rooms = domains[record.domain_index].get();
  caller->uid = record.uid;
  if (group_index == kAllGroups) return Status::Ok();
  const auto& groups = caller->domain().groups;
  if (group_index >= groups.size() || groups[group_index] == nullptr) {
    return Status(StatusCode::kInvalid, "there is no such group; open it first");
  }
  caller->group = groups[group_index].get();
  return Status::Ok();
}

void StoreRooms::LeaveUntold(SessionId session, const LeaseToken& token) {
  const SessionIndex index = sessions.Find(session);
  if (token.is_zero() || index == kSessionNone || sessions.at(index).is_hung_up) return;
  DomainRooms& rooms = at(sessions.at(index).domain_index);
  const LeaseId id = rooms.domain.leases.Find(token);
  if (id == kLeaseNone || !rooms.lease_manager.IsJoiner(id, index)) return;
  rooms.lease_manager.Leave(id, index);
  Settle(rooms);
}

uint64_t StoreRooms::DeadlineUs(const protocol::Hints& hints) const {
  const uint32_t asked_us =
      hints.deadline_us == 0 ? options.default_deadline_us : hints.deadline_us;
  return clock.NowUs() + std::min(asked_us, options.deadline_us_max);
}

uint64_t StoreRooms::AnswerDueUs(const protocol::Hints& hints) const {
  const uint64_t deadline_us = DeadlineUs(hints);
  if (hints.by_verb == 0) return deadline_us;
  return std::min(deadline_us, clock.NowUs() + hints.by_verb * kUsPerMs);
}

void StoreRooms::Settle(DomainRooms& rooms) {
  uint32_t budget = protocol::kBlocksPerTurnMax;
  rooms.lease_manager.Step(&budget);
  rooms.waiters.StepWoken();
  rooms.shared_reader.Step();
  rooms.shared_writer.Step();
  if (rooms.domain.is_short()) rooms.adoption.DropParked();
  PopulateAhead(rooms);
  if (segments.has_work()) segments.Step();
  if (rooms.erasures.has_work()) {
    rooms.erasures.Step();
    RetryBy(clock.NowUs() + kErasureLookUs);
  }
  rooms.domain.shared_copies.Step();
  rooms.kv_events.LookAtServing();
  if (rooms.kv_events.has_work()) StepKvEvents(rooms);
  if (rooms.named_pins.has_work()) {
    rooms.named_pins.Step();
    if (rooms.named_pins.has_work()) RetryBy(clock.NowUs());
  }
  if (rooms.mover.has_work() || rooms.verifier.has_work() || rooms.kv_events.has_work() ||
      rooms.relocations.has_work() || rooms.domain.shared_copies.has_work()) {
    RetryBy(clock.NowUs() + kRetryUs);
  }
}

// Domains may share a topic, so all of them begin at once.
void StoreRooms::BeginKvEventsAnew() {
  for (const std::unique_ptr<DomainRooms>& rooms : domains) {
    if (rooms->domain.options.kv_events != nullptr)
      kv_events_anew = rooms->domain.options.kv_events;
  }
  if (kv_events_anew == nullptr) return;
  const KvEvent begins{.kind = KvEvent::Kind::kAllBegins};
  kv_events_anew->Publish({&begins, 1});
  for (const std::unique_ptr<DomainRooms>& rooms : domains) rooms->kv_events.Republish();
  EndKvEventsAnew();
}

void StoreRooms::EndKvEventsAnew() {
  const bool goes_on =
      std::ranges::any_of(domains, [](const auto& rooms) { return rooms->kv_events.has_anew(); });
  if (goes_on || kv_events_anew == nullptr) return;
  const KvEvent ends{.kind = KvEvent::Kind::kAllEnds};
  kv_events_anew->Publish({&ends, 1});
  kv_events_anew = nullptr;
}

void StoreRooms::StepKvEvents(DomainRooms& rooms) {
  const bool is_anew = rooms.kv_events.has_anew();
  const bool has_room = rooms.kv_events.Step();
  if (is_anew && has_room) RetryBy(clock.NowUs());  // the sooner routers have a whole view
  if (is_anew) EndKvEventsAnew();
}

void StoreRooms::PopulateAhead(DomainRooms& rooms) {
  RadixIndex& index = rooms.domain.index;
  for (auto memory = index.TakeAhead(); !memory.empty(); memory = index.TakeAhead()) {
    seams.offload.Populate(memory);
  }
  const std::span<std::byte> readiness = rooms.residency.candidates.TakeAhead();
  if (!readiness.empty()) seams.offload.Populate(readiness);
}

void StoreRooms::StepTurns() {
  const SessionId session = turns.Next(clock.NowUs());
  if (session != 0) seams.listener.OnPinTurn(session);
}

bool DomainRooms::is_settled() const {
  if (!verifier.is_idle() || !mover.is_idle()) return false;
  if (domain.persistent_tier == kLowerTiersMax) return true;
  const LowerTier& lower = domain.lower[domain.persistent_tier];
  return lower.is_off || lower.block_count == lower.persisted_block_count;
}

void DomainRooms::OnSharedFetched(TransferId transfer_id, Status status,
                                  const BlockRecord& record) {
  shared_reader.OnFetched(transfer_id, status, record);
  settle();
}

void DomainRooms::OnSharedStored(TransferId transfer_id, Status status) {
  shared_writer.OnStored(transfer_id, status);
  settle();
}

void DomainRooms::OnSharedForgotten(const GroupId& group) {
  shared_writer.OnForgotten(group);
  settle();
}

void DomainRooms::OnSharedProbed(uint64_t probe_id, Status status,
                                 const std::vector<bool>& is_present) {
  shared_reader.OnProbed(probe_id, status, is_present);
  settle();
}

}  // namespace terrace
