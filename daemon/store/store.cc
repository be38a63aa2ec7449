// Construction, sessions, groups, events and timers; the verbs are in store_*.cc, one file a
// family.
#include "daemon/store/store.h"

#include <algorithm>

#include "daemon/store/store_state.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kRetryUs = 1'000;
constexpr uint64_t kErasureLookUs = 10'000;
constexpr uint64_t kTickUs = 500'000;  // of tiers, which want one a second
constexpr uint32_t kDomainShift = 48;  // of TransferIds and OffloadIds
// Groups that wait for their last erasure; of more the one forgotten first does not wait. If the
// host dies then, `terrace fsck --repair` frees the slots of what was not erased yet.
constexpr size_t kForgottenGroupsMax = 256;
constexpr uint32_t kForgottenPerTickMax = 16;
constexpr uint32_t kExpiryWork = 2;  // of erasing a block, against looking one up

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

}  // namespace

DomainRooms::DomainRooms(uint32_t domain_index, const DomainOptions& options,
                         const StoreOptions& limits, const StoreSeams& seams,
                         SessionRegister& sessions)
    : domain(domain_index, options, limits, seams),
      residency(domain),
      evictor(domain, residency),
      waiters(domain, residency),
      keeper(domain, residency, waiters, sessions),
      verifier(domain, residency),
      mover(domain, residency, evictor, verifier),
      scrubber(domain, residency, mover, Scrubber::kNumberBit),
      checker(domain, residency, mover, Scrubber::kCheckNumberBit),
      adoption(domain, residency, mover),
      shared_writer(domain, residency, verifier),
      shared_reader(domain, residency, evictor, verifier, mover),
      notes(domain, residency, verifier, shared_writer),
      room_waits(domain),
      kv_events(domain) {
  mover.SetShared(&shared_writer, &shared_reader);
  residency.observers.waiting = &waiters;
  if (options.kv_events != nullptr) residency.observers.kv_events = &kv_events;
  evictor.SetWriter(&mover);
  verifier.SetListener(&mover);
}

Store::State::State(StoreOptions store_options, Clock& clock_seam, Random& random, Offload& offload,
                    StoreListener& listener)
    : options(std::move(store_options)),
      clock(clock_seam),
      seams{clock_seam, random, offload, listener, deadlines, work},
      sessions(options.sessions, static_cast<uint32_t>(options.domains.size())),
      ledger(options, seams, sessions) {
  TERRACE_CHECK(options.fenced_bytes_max > 0, "zero never means unlimited: fenced_bytes_max");
  for (uint32_t i = 0; i < options.domains.size(); ++i) {
    TERRACE_CHECK(options.domains[i].arena != nullptr && options.domains[i].segments_max > 0,
                  "a domain has an arena");
    domains.push_back(
        std::make_unique<DomainRooms>(i, options.domains[i], options, seams, sessions));
    domains[i]->settle = [this, rooms = domains[i].get()] { Settle(*rooms); };
    ledger.AddDomain(&domains[i]->domain, &domains[i]->evictor);
    for (const uint32_t segment : options.domains[i].populated_segments) {
      ledger.AdoptPopulated(i, segment);
    }
    const bool has_tiers =
        !domains[i]->domain.lower.empty() || options.domains[i].shared.tier != nullptr;
    if (has_tiers) ArmTick(i);
    if (HbmTier* const device = options.domains[i].device.tier) device->Serve(this, this);
  }
  ledger.Step();
}

void Store::State::ArmTick(uint32_t domain_index) {
  deadlines.Add({.due_us = clock.NowUs() + kTickUs,
                 .kind = DeadlineKind::kTick,
                 .domain_index = domain_index});
}

Store::Store(StoreOptions options, Clock& clock, Random& random, Offload& offload,
             StoreListener& listener)
    : state_(std::make_unique<State>(std::move(options), clock, random, offload, listener)) {}
Store::~Store() = default;

// ---- sessions ----

Status Store::OpenSession(const SessionOptions& session, std::string* why) {
  State& s = *state_;
  if (session.domain_index >= s.domains.size()) {
    return Status(StatusCode::kInvalid, "there is no such domain");
  }
  if (s.sessions.Find(session.id) != kSessionNone) {
    return Status(StatusCode::kInvalid, "a session of that id is open");
  }
  std::string sentence;
  const SessionIndex index = s.sessions.Open(session, why != nullptr ? why : &sentence);
  if (index == kSessionNone) {
    return Status(StatusCode::kNoSpace, "a limit of sessions is reached");
  }
  SessionRecord& record = s.sessions.at(index);
  record.last_sign_us = s.clock.NowUs();
  ++s.domains[session.domain_index]->domain.session_count;
  return Status::Ok();
}

bool Store::HangUp(SessionId session) {
  State& s = *state_;
  const SessionIndex index = s.sessions.Find(session);
  if (index == kSessionNone) return false;
  SessionRecord& record = s.sessions.at(index);
  if (record.is_hung_up) return !record.is_dead;
  DomainRooms& rooms = *s.domains[record.domain_index];
  record.is_hung_up = true;
  record.is_dead = !record.has_slots;  // what it never was told of it cannot touch
  const bool is_dead = record.is_dead;
  if (record.deadline != kHandleNone) {
    s.deadlines.Remove(record.deadline);
    record.deadline = kHandleNone;
  }
  for (const uint32_t group : record.groups) --rooms.domain.groups[group]->session_count;
  record.groups.clear();
  --rooms.domain.session_count;
  rooms.waiters.DropAll(session, kLeaseNone);
  rooms.keeper.OnHangUp(index);
  if (record.has_device) rooms.domain.options.device.tier->HangUp(session);
  if (s.turns.End(session)) s.StepTurns();
  s.Settle(rooms);  // the record may be gone after this
  return !is_dead;
}

void Store::ProofOfDeath(SessionId session) {
  State& s = *state_;
  HangUp(session);
  const SessionIndex index = s.sessions.Find(session);
  if (index == kSessionNone || s.sessions.at(index).is_dead) return;
  SessionRecord& record = s.sessions.at(index);
  record.is_dead = true;
  DomainRooms& rooms = *s.domains[record.domain_index];
  s.ledger.OnUnmapped(index, kSegmentNone);
  rooms.keeper.OnHangUp(index);
  if (record.has_device) rooms.domain.options.device.tier->ProofOfDeath(session);
  s.Settle(rooms);
}

void Store::SignOfLife(SessionId session) {
  const SessionIndex index = state_->sessions.Find(session);
  if (index != kSessionNone) state_->SignOfLife(state_->sessions.at(index));
}

void Store::State::SignOfLife(SessionRecord& record) {
  record.last_sign_us = clock.NowUs();
  if (record.deadline != kHandleNone || record.is_hung_up || record.leases.empty()) return;
  record.deadline = deadlines.Add({.due_us = record.last_sign_us + options.lease_ttl_ms * kUsPerMs,
                                   .kind = DeadlineKind::kSessionSilent,
                                   .domain_index = record.domain_index,
                                   .id = sessions.Find(record.id)});
}

Status Store::State::Enter(SessionId session, uint32_t group_index, Caller* caller) {
  caller->session = sessions.Find(session);
  if (caller->session == kSessionNone || sessions.at(caller->session).is_hung_up) {
    return Status(StatusCode::kGone, "the session has ended");
  }
  SessionRecord& record = sessions.at(caller->session);
  SignOfLife(record);
  caller->rooms = domains[record.domain_index].get();
  if (group_index == kAllGroups) return Status::Ok();
  const auto& groups = caller->domain().groups;
  if (group_index >= groups.size() || groups[group_index] == nullptr) {
    return Status(StatusCode::kInvalid, "there is no such group; open it first");
  }
  caller->group = groups[group_index].get();
  return Status::Ok();
}

uint64_t Store::State::DeadlineUs(const protocol::Hints& hints) const {
  const uint32_t asked_us =
      hints.deadline_us == 0 ? options.default_deadline_us : hints.deadline_us;
  return clock.NowUs() + std::min(asked_us, options.deadline_us_max);
}

uint64_t Store::State::AnswerDueUs(const protocol::Hints& hints) const {
  const uint64_t deadline_us = DeadlineUs(hints);
  if (hints.by_verb == 0) return deadline_us;
  return std::min(deadline_us, clock.NowUs() + hints.by_verb * kUsPerMs);
}

Status Store::Unmapped(SessionId session, uint32_t segment) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  if (segment >= caller.domain().options.segments_max) {
    return Status(StatusCode::kInvalid, "the arena has no such segment");
  }
  state_->ledger.OnUnmapped(caller.session, segment);
  return Status::Ok();
}

uint32_t Store::SegmentsOwedBy(SessionId session) const {
  const SessionIndex index = state_->sessions.Find(session);
  return index == kSessionNone ? 0 : state_->ledger.OwedBy(index);
}

// ---- groups ----

namespace {

// The same name with another spec, or the same Spaces on other hosts, is refused in words.
Status RefuseOther(const SpaceGroupSpec& known, const SpaceGroupSpec& asked, std::string* why) {
  *why = "group " + Quoted(known.name) + " is open with ";
  if (known.members.size() != asked.members.size()) {
    *why += std::to_string(known.members.size()) + " members, not " +
            std::to_string(asked.members.size());
  }
  for (size_t m = 0; m < std::min(known.members.size(), asked.members.size()); ++m) {
    const SpaceDifference difference =
        FirstDifference(known.members[m].spec, asked.members[m].spec);
    if (!difference.field.empty()) {
      *why += "member " + std::to_string(m) + "'s " + difference.field + " " +
              Quoted(difference.left) + ", not " + Quoted(difference.right);
      break;
    }
    if (known.members[m].is_remote != asked.members[m].is_remote) {
      *why += "member " + std::to_string(m) +
              (known.members[m].is_remote ? " on another host" : " on this host");
      break;
    }
  }
  *why += ": open another name, or the same spec";
  return Status(StatusCode::kInvalid, "the group exists with another spec");
}

// Nobody has it open, and nothing is left of its blocks.
bool IsIdle(const CacheDomain& domain, uint32_t group_index) {
  const Group& group = *domain.groups[group_index];
  return group.session_count == 0 && group.roots().used_count() == 0;
}

// A place for another group: `idle` if there is one, a new one, or that of any idle group.
uint32_t PlaceFor(const CacheDomain& domain, uint32_t idle) {
  if (idle != kAllGroups) return idle;
  if (domain.groups.size() < domain.limits.groups_max) {
    return static_cast<uint32_t>(domain.groups.size());
  }
  for (uint32_t g = 0; g < domain.groups.size(); ++g) {
    if (IsIdle(domain, g)) return g;
  }
  return kAllGroups;
}

void DropFront(CacheDomain& domain) {
  domain.limits.shelf->Drop(domain.domain_index, domain.forgotten_groups.front().id);
  domain.forgotten_groups.pop_front();
}

void Forget(CacheDomain& domain, const GroupId& id) {
  if (domain.limits.shelf == nullptr) return;
  std::erase_if(domain.forgotten_groups, [&](const auto& group) { return group.id == id; });
  if (domain.forgotten_groups.size() >= kForgottenGroupsMax) DropFront(domain);
  domain.forgotten_groups.push_back({.id = id, .erased = domain.MarkErasures()});
}

// What no successor will find a block of need not be known to it.
void DropForgotten(CacheDomain& domain) {
  for (uint32_t i = 0; i < kForgottenPerTickMax && !domain.forgotten_groups.empty(); ++i) {
    ForgottenGroup& next = domain.forgotten_groups.front();
    const bool is_back = std::ranges::any_of(
        domain.groups, [&](const auto& group) { return group->id() == next.id; });
    if (is_back) {
      domain.forgotten_groups.pop_front();
    } else if (domain.IsErased(&next.erased)) {
      DropFront(domain);
    } else {
      return;  // nor have those behind it ended
    }
  }
}

}  // namespace

Result<uint32_t> AddGroup(CacheDomain& domain, const SpaceGroupSpec& spec, uint32_t idle,
                          std::string* why) {
  const uint32_t place = PlaceFor(domain, idle);
  if (place == kAllGroups) {
    *why = "domain " + Quoted(domain.options.name) + " has " +
           std::to_string(domain.groups.size()) +
           " groups in use, the limit is groups_max = " + std::to_string(domain.limits.groups_max) +
           ": close sessions, Reset a group that is not needed, or raise groups_max";
    return Status(StatusCode::kNoSpace, "groups_max groups are in use");
  }
  auto group = std::make_unique<Group>();
  if (domain.options.kv_events != nullptr) {
    group->kv_event_stream = domain.options.kv_events->StreamOf(domain.domain_index, spec);
  }
  const Status opened = group->Open(spec, place, &domain.slots, &domain.slot_classes);
  if (!opened.ok()) {
    uint64_t slot_bytes = 0;
    for (const SpaceGroupMember& member : spec.members) {
      slot_bytes = std::max(slot_bytes, member.spec.slot_bytes());
    }
    *why = "group " + Quoted(spec.name) + " needs slots of up to " + std::to_string(slot_bytes) +
           " bytes in segments of " + std::to_string(domain.options.segment_bytes) + ": " +
           opened.what();
    return opened;
  }
  group->PlanPartReads(domain.limits.part_read_bytes_min);
  if (place == domain.groups.size()) domain.groups.emplace_back();
  if (domain.groups[place] != nullptr) {
    domain.member_count -= static_cast<uint32_t>(domain.groups[place]->locals().size());
    Forget(domain, domain.groups[place]->id());
  }
  domain.member_count += static_cast<uint32_t>(group->locals().size());
  domain.groups[place] = std::move(group);
  DropForgotten(domain);  // before the new one wants room on the shelf
  return place;
}

Result<OpenedGroup> Store::OpenGroup(SessionId session, const SpaceGroupSpec& spec,
                                     std::string* why) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  TERRACE_RETURN_IF_ERROR(spec.Validate(why));
  CacheDomain& domain = caller.domain();
  uint32_t place = kAllGroups;
  uint32_t idle = kAllGroups;
  const GroupId id = spec.Id();
  for (uint32_t g = 0; g < domain.groups.size(); ++g) {
    const Group& group = *domain.groups[g];
    if (group.spec().name != spec.name && group.id() != id) continue;
    if (group.spec().members == spec.members) {
      place = g;
    } else if (IsIdle(domain, g)) {
      idle = g;
    } else {
      return RefuseOther(group.spec(), spec, why);
    }
  }
  if (place == kAllGroups) {
    const Result<uint32_t> added = AddGroup(domain, spec, idle, why);
    if (!added.ok()) return added.status();
    place = *added;
    state_->ledger.Step();
  }
  Group& group = *domain.groups[place];
  group.was_opened = true;
  caller.rooms->adoption.OnGroup(place);
  GroupShelf* const shelf = state_->options.shelf;
  if (shelf != nullptr && shelf->StateOf(domain.domain_index, id) == GroupShelf::State::kFailed) {
    shelf->Keep(domain.domain_index, spec);
  }
  SessionRecord& record = state_->sessions.at(caller.session);
  if (std::find(record.groups.begin(), record.groups.end(), place) == record.groups.end()) {
    record.groups.push_back(place);
    ++group.session_count;
  }
  OpenedGroup opened{.group_index = place, .id = id};
  for (const SpaceGroupMember& member : spec.members) {
    opened.members.push_back({.space = member.spec.Id(), .slot_bytes = member.spec.slot_bytes()});
  }
  return opened;
}

// ---- events ----

void Store::OnSegmentPopulated(uint32_t domain_index, uint32_t segment, Status status) {
  state_->ledger.OnPopulated(domain_index, segment, status);
  state_->domains[domain_index]->room_waits.Wake();
}

void Store::OnSegmentPunched(uint32_t domain_index, uint32_t segment, Status status) {
  state_->ledger.OnPunched(domain_index, segment, status);
}

void Store::OnChecksumsDone(OffloadId id, std::span<const Checksum> roots) {
  const uint64_t domain_index = id >> kDomainShift;
  TERRACE_CHECK(domain_index < state_->domains.size(), "an OffloadId names its domain");
  DomainRooms& rooms = *state_->domains[domain_index];
  const uint64_t number = id & ((uint64_t{1} << kDomainShift) - 1);
  if (number == Scrubber::kNumberBit) {
    rooms.scrubber.OnChecksumsDone(roots);
  } else if (number == Scrubber::kCheckNumberBit) {
    rooms.checker.OnChecksumsDone(roots);
  } else {
    rooms.verifier.OnChecksumsDone(number, roots);
  }
  rooms.verifier.Step();
  rooms.adoption.Step();
  state_->Settle(rooms);
}

void Store::OnShelfChanged(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < state_->domains.size(), "a shelf names its domain");
  DomainRooms& rooms = *state_->domains[domain_index];
  rooms.mover.OnShelfChanged();
  state_->Settle(rooms);
}

void Store::RepublishKvEvents() {
  for (const std::unique_ptr<DomainRooms>& rooms : state_->domains) {
    rooms->kv_events.Republish();
    state_->Settle(*rooms);
  }
}

TierListener& Store::tier_listener() { return *state_; }

void Store::State::OnTransferDone(TransferId transfer_id, Status status) {
  const uint64_t domain_index = transfer_id >> kDomainShift;
  TERRACE_CHECK(domain_index < domains.size(), "a TransferId names its domain");
  DomainRooms& rooms = *domains[domain_index];
  const uint64_t number = transfer_id & ((uint64_t{1} << kDomainShift) - 1);
  if (number == Scrubber::kNumberBit) {
    rooms.scrubber.OnTransferDone(status);
  } else if (number == Scrubber::kCheckNumberBit) {
    rooms.checker.OnTransferDone(status);
  } else {
    rooms.mover.OnTransferDone(number, status);
  }
  Settle(rooms);
}

void Store::State::OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                               uint32_t member) {
  TERRACE_CHECK(domain_index < domains.size(), "a record names its domain");
  domains[domain_index]->residency.lower.EndPersist(owner, commit_id, member);
}

void Store::State::OnRecordInDoubt(uint32_t domain_index, uint32_t owner) {
  TERRACE_CHECK(domain_index < domains.size(), "a record names its domain");
  DomainRooms& rooms = *domains[domain_index];
  if (rooms.domain.block(owner).phase != BlockPhase::kSealed) return;  // soon freed, which tells
  rooms.residency.updates.Note(owner);
  retry_us = std::min(retry_us, clock.NowUs() + kRetryUs);
}

void Store::State::OnRoom(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < domains.size(), "a tier names its domain");
  DomainRooms& rooms = *domains[domain_index];
  rooms.mover.OnRoom();
  Settle(rooms);
}

uint64_t Store::work() const { return state_->work; }

bool Store::is_ready() const { return state_->ledger.is_ready(); }

void Store::StopScrub() {
  for (const auto& rooms : state_->domains) {
    rooms->scrubber.Stop();
    rooms->checker.Stop();
  }
}

bool Store::is_settled() const {
  return std::all_of(state_->domains.begin(), state_->domains.end(), [](const auto& rooms) {
    const CacheDomain& domain = rooms->domain;
    if (!rooms->verifier.is_idle() || !rooms->mover.is_idle()) return false;
    if (domain.persistent_tier == kLowerTiersMax) return true;
    const LowerTier& lower = domain.lower[domain.persistent_tier];
    return lower.is_off || lower.block_count == lower.persisted_block_count;
  });
}

bool Store::is_shared_idle() const {
  return std::ranges::all_of(state_->domains, [](const auto& rooms) {
    return rooms->verifier.is_idle() && rooms->shared_writer.is_idle();
  });
}

// ---- turns ----

void Store::State::Settle(DomainRooms& rooms) {
  uint32_t budget = protocol::kBlocksPerTurnMax;
  rooms.keeper.Step(&budget);
  rooms.waiters.StepWoken();
  rooms.shared_reader.Step();
  rooms.shared_writer.Step();
  if (rooms.domain.is_short()) rooms.adoption.DropParked();
  if (ledger.has_work()) ledger.Step();
  if (rooms.waiters.has_erasures()) {
    rooms.waiters.StepErasures();
    retry_us = std::min(retry_us, clock.NowUs() + kErasureLookUs);
  }
  if (rooms.kv_events.has_work()) rooms.kv_events.Step();
  if (rooms.mover.has_work() || rooms.verifier.has_work() || rooms.kv_events.has_work()) {
    retry_us = std::min(retry_us, clock.NowUs() + kRetryUs);
  }
}

void Store::OnTimer() {
  State& s = *state_;
  const uint64_t now_us = s.clock.NowUs();
  s.retry_us = kNever;
  s.StepTurns();
  Deadline due;
  const uint64_t work_end = s.work + protocol::kBlocksPerTurnMax;
  while (s.work < work_end && s.deadlines.PopDue(now_us, &due)) {
    ++s.work;
    DomainRooms& rooms = *s.domains[due.domain_index];
    switch (due.kind) {
      case DeadlineKind::kSessionSilent: {
        SessionRecord& record = s.sessions.at(due.id);
        record.deadline = kHandleNone;
        const bool is_silent = record.last_sign_us + s.options.lease_ttl_ms * kUsPerMs <= now_us;
        if (is_silent) {
          rooms.keeper.OnSilence(due.id);
        } else if (!record.leases.empty()) {
          record.deadline =
              s.deadlines.Add({.due_us = record.last_sign_us + s.options.lease_ttl_ms * kUsPerMs,
                               .kind = DeadlineKind::kSessionSilent,
                               .domain_index = due.domain_index,
                               .id = due.id});
        }
        break;
      }
      case DeadlineKind::kPending:
        rooms.waiters.OnDeadline(due.id);
        break;
      case DeadlineKind::kBlockExpiry:
        s.work += kExpiryWork;
        rooms.residency.lifecycle.Expire(due.id);
        break;
      case DeadlineKind::kPopulateRetry:
        s.ledger.OnRetry(due.domain_index);
        break;
      case DeadlineKind::kDrain:
        s.ledger.OnDrainTimer();
        break;
      case DeadlineKind::kSeek:
        rooms.shared_reader.OnSeekDeadline(due.id);
        break;
      case DeadlineKind::kRoom:
        rooms.room_waits.OnDeadline(due.id);
        break;
      case DeadlineKind::kTick:
        rooms.shared_reader.Tick();
        rooms.shared_writer.Tick();
        rooms.mover.Tick();
        rooms.scrubber.Tick();
        rooms.checker.Tick();
        DropForgotten(rooms.domain);
        for (LowerTier& lower : rooms.domain.lower) {
          lower.written.Note(lower.tier->stats().written_bytes, now_us);
        }
        s.ArmTick(due.domain_index);
        break;
    }
  }
  for (const std::unique_ptr<DomainRooms>& rooms : s.domains) {
    rooms->waiters.Step();
    rooms->verifier.Step();
    rooms->mover.Step();
    rooms->adoption.Step();
    rooms->notes.Step();
    s.Settle(*rooms);
  }
}

uint64_t Store::NextTimerUs() const {
  const State& s = *state_;
  for (const std::unique_ptr<DomainRooms>& rooms : s.domains) {
    if (rooms->waiters.has_work() || rooms->keeper.has_work()) return 0;
    if (rooms->adoption.has_work() || rooms->notes.has_work()) return 0;
  }
  return std::min({s.deadlines.next_us(), s.retry_us, s.turns.next_us()});
}

}  // namespace terrace
