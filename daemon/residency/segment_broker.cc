#include "daemon/residency/segment_broker.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kPopulateRetryUs = 1'000'000;
constexpr uint64_t kDrainPeriodUs = 10'000;
constexpr uint32_t kDrainBlocksPerStepMax = 256;
constexpr uint32_t kDrainSlotsPerStepMin = 1024;  // looked at, if there are so many
constexpr uint64_t kAheadBytesMax = uint64_t{1} << 30;
// A borrower whose segment has not left by then does not keep others from giving back theirs.
constexpr uint64_t kTakeBackPatienceUs = 1'000'000;

}  // namespace

SegmentBroker::SegmentBroker(const StoreOptions& options, const StoreSeams& seams,
                             SessionRegister& sessions)
    : options_(options), seams_(seams), sessions_(sessions) {}

void SegmentBroker::AddDomain(CacheDomain* domain, Evictor* evictor) {
  domains_.push_back({.domain = domain, .evictor = evictor});
  domains_.back().segments.resize(domain->options.segments_max);
}

void SegmentBroker::AdoptPopulated(uint32_t domain_index, uint32_t segment) {
  DomainRecord& record = domains_[domain_index];
  TERRACE_CHECK(record.segments[segment].use == Use::kNone, "a segment is adopted once");
  record.segments[segment].use = Use::kPopulated;
  record.domain->slots.SegmentPopulated(segment);
  record.has_tried = true;
  ++record.held_count;
  ++held_total_;
}

uint32_t SegmentBroker::populated_count(uint32_t domain_index) const {
  return domains_[domain_index].held_count - domains_[domain_index].populating_count;
}

uint32_t SegmentBroker::borrowed_count(uint32_t domain_index) const {
  const DomainRecord& record = domains_[domain_index];
  return record.held_count -
         std::min(record.held_count, record.domain->options.segments_guaranteed);
}

uint32_t SegmentBroker::OwedBy(SessionIndex session) const {
  const DomainRecord& record = domains_[sessions_.at(session).domain_index];
  if (record.draining_count == 0) return 0;
  return static_cast<uint32_t>(std::ranges::count_if(record.segments, [&](const auto& segment) {
    return segment.use == Use::kRevoking &&
           std::ranges::find(segment.mapped_by, session) != segment.mapped_by.end();
  }));
}

bool SegmentBroker::MayTakeOne(const DomainRecord& record) const {
  uint32_t kept_free = 0;
  for (const DomainRecord& other : domains_) kept_free += &other == &record ? 0 : other.kept_free();
  return held_total_ + kept_free < options_.segments_total;
}

bool SegmentBroker::is_ready() const {
  return std::all_of(domains_.begin(), domains_.end(),
                     [](const DomainRecord& record) { return record.has_tried; });
}

bool SegmentBroker::has_work() const {
  return std::any_of(domains_.begin(), domains_.end(), [this](const DomainRecord& record) {
    if (record.domain->is_short()) return true;
    if (record.populating_count > 0 || record.draining_count > 0) return false;
    const uint32_t free_count = record.domain->slots.segment_count(SegmentState::kFree);
    if (free_count >= SpareWanted(record) || record.held_count >= record.segments.size()) {
      return false;
    }
    return MayTakeOne(record) || record.held_count < record.domain->options.segments_guaranteed;
  });
}

void SegmentBroker::Step() {
  // Domains below their guarantee first: what was taken back for one of them is not for others.
  for (const bool is_guaranteed : {true, false}) {
    for (DomainRecord& record : domains_) {
      const uint32_t kept_count = record.held_count - record.draining_count;
      const bool is_below = kept_count < record.domain->options.segments_guaranteed;
      if (is_below == is_guaranteed) Grow(record);
    }
  }
  for (DomainRecord& record : domains_) {
    record.domain->shortages_seen.of_owner() = record.domain->shortages;
    TellRoom(record);
  }
}

void SegmentBroker::TellRoom(DomainRecord& record) const {
  const bool may_grow = record.held_count < record.segments.size() && MayTakeOne(record);
  const bool is_growing = may_grow || record.populating_count > 0;
  record.domain->is_room_coming.of_owner() =
      record.populating_count > 0 || (may_grow && !record.is_backing_off);
  if (is_growing == record.is_growing) return;
  record.is_growing = is_growing;
  record.domain->dram_policy->OnRoom(is_growing ? EvictionPolicy::Room::kGrows
                                                : EvictionPolicy::Room::kAllThere);
}

// What still holds a draining segment may have let go.
void SegmentBroker::OnDrainTimer() {
  has_drain_timer_ = false;
  for (DomainRecord& record : domains_) {
    if (record.draining_count == 0) continue;
    for (uint32_t segment = 0; segment < record.segments.size(); ++segment) {
      if (record.segments[segment].use == Use::kDraining) StepDrain(record, segment);
    }
  }
}

// Clients fill memory several times faster than it is populated, so what is ahead of them grows
// with what they use; a domain that nobody uses takes no more than segments_spare.
uint32_t SegmentBroker::SpareWanted(const DomainRecord& record) const {
  const SlotAllocator& slots = record.domain->slots;
  const auto ahead_max =
      static_cast<uint32_t>(kAheadBytesMax / record.domain->options.segment_bytes);
  const uint32_t ahead_count =
      std::min(slots.segment_count(SegmentState::kAssigned) + 1, ahead_max);
  return std::max(options_.segments_spare, ahead_count);
}

// Local members of all groups.
static uint32_t MemberCountOf(const CacheDomain& domain) {
  size_t count = 0;
  for (const std::unique_ptr<Group>& group : domain.groups) count += group->locals().size();
  return static_cast<uint32_t>(count);
}

// One segment at a time, so that no domain takes all there is at the start.
void SegmentBroker::Grow(DomainRecord& record) {
  CacheDomain& domain = *record.domain;
  if (record.populating_count > 0 || record.is_backing_off) return;
  const uint32_t free_count = domain.slots.segment_count(SegmentState::kFree);
  // A segment for each member, so that a block of a group finds room for all of them: members fill
  // their segments in step, and what one of them finds is given back when the next finds none.
  const uint32_t segments_wanted = std::max(MemberCountOf(domain), 1u);
  const bool wants_first = record.held_count < segments_wanted;
  const bool wants_spare = free_count < SpareWanted(record);
  const bool wants_more = domain.is_short() && free_count < segments_wanted;
  if (!wants_first && !wants_spare && !wants_more) return;
  if (record.held_count >= domain.options.segments_max) return;
  if (!MayTakeOne(record)) {
    if (record.held_count - record.draining_count < domain.options.segments_guaranteed) {
      TakeBackFor(record);
    }
    return;
  }
  for (uint32_t segment = 0; segment < record.segments.size(); ++segment) {
    if (record.segments[segment].use != Use::kNone) continue;
    record.segments[segment].use = Use::kPopulating;
    ++record.held_count;
    ++record.populating_count;
    ++held_total_;
    domain.options.arena->BeginPopulate(segment);
    return;
  }
}

void SegmentBroker::OnPopulated(uint32_t domain_index, uint32_t segment, Status status) {
  DomainRecord& record = domains_[domain_index];
  TERRACE_CHECK(record.segments[segment].use == Use::kPopulating, "a segment is populated once");
  --record.populating_count;
  record.has_tried = true;
  if (status.ok()) {
    record.segments[segment].use = Use::kPopulated;
    record.domain->slots.SegmentPopulated(segment);
  } else {
    record.segments[segment].use = Use::kNone;
    --record.held_count;
    --held_total_;
    record.is_backing_off = true;
    seams_.deadlines.Add({.due_us = seams_.clock.NowUs() + kPopulateRetryUs,
                          .kind = DeadlineKind::kPopulateRetry,
                          .domain_index = domain_index});
  }
  Step();
}

void SegmentBroker::OnRetry(uint32_t domain_index) {
  domains_[domain_index].is_backing_off = false;
  Step();
}

// ---- taking memory back ----

// From whoever borrowed most; one segment on its way is enough, while it is on its way.
void SegmentBroker::TakeBackFor(const DomainRecord& taker) {
  DomainRecord* borrower = nullptr;
  uint32_t most_borrowed = 0;
  const uint64_t now_us = seams_.clock.NowUs();
  for (DomainRecord& record : domains_) {
    if (record.draining_count > 0 && now_us < record.drain_began_us + kTakeBackPatienceUs) return;
    if (record.draining_count > 0 || &record == &taker) continue;
    const uint32_t guaranteed = record.domain->options.segments_guaranteed;
    if (record.held_count <= guaranteed) continue;
    if (record.held_count - guaranteed > most_borrowed) {
      most_borrowed = record.held_count - guaranteed;
      borrower = &record;
    }
  }
  if (borrower == nullptr) return;
  const uint32_t segment = EmptiestSegment(*borrower);
  if (segment == kSegmentNone) return;
  borrower->segments[segment].use = Use::kDraining;
  ++borrower->draining_count;
  borrower->drain_began_us = now_us;
  borrower->domain->slots.BeginDrain(segment);
  StepDrain(*borrower, segment);
}

uint32_t SegmentBroker::EmptiestSegment(const DomainRecord& record) const {
  uint32_t emptiest = kSegmentNone;
  uint32_t fewest = UINT32_MAX;
  for (uint32_t segment = 0; segment < record.segments.size(); ++segment) {
    if (record.segments[segment].use != Use::kPopulated) continue;
    const uint32_t used_count = record.domain->slots.slots_used_in(segment);
    if (used_count < fewest) {
      fewest = used_count;
      emptiest = segment;
    }
  }
  return emptiest;
}

// Drops what may be dropped, some a step; what is held keeps the segment until it is let go.
void SegmentBroker::StepDrain(DomainRecord& record, uint32_t segment) {
  CacheDomain& domain = *record.domain;
  if (!domain.slots.IsDrained(segment)) {
    scratch_slots_.clear();
    uint32_t& chunk = record.segments[segment].drain_chunk;
    chunk = domain.slots.SlotsInSegment(segment, chunk, kDrainSlotsPerStepMin, &scratch_slots_);
    seams_.work += scratch_slots_.size();
    uint32_t budget = kDrainBlocksPerStepMax;
    for (const SlotRef& slot : scratch_slots_) {
      if (budget == 0) break;
      if (!domain.slots.IsCurrent(slot)) continue;
      const BlockId id = record.evictor->BlockIn(slot);
      if (id == kBlockNone) continue;
      const EraseCauseScope scope(*record.domain, protocol::MissCause::kQuota);
      record.evictor->DropDramSubtree(id, Evictor::Pins::kGive, &budget);
    }
  }
  if (domain.slots.IsDrained(segment)) {
    BeginRevoke(record, segment);
  } else if (!has_drain_timer_) {
    has_drain_timer_ = true;
    seams_.deadlines.Add({.due_us = seams_.clock.NowUs() + kDrainPeriodUs,
                          .kind = DeadlineKind::kDrain,
                          .domain_index = domain.domain_index});
  }
}

void SegmentBroker::BeginRevoke(DomainRecord& record, uint32_t segment) {
  SegmentRecord& s = record.segments[segment];
  s.use = Use::kRevoking;
  record.domain->slots.SetSegmentState(segment, SegmentState::kRevoking);
  s.mapped_by.clear();
  sessions_.ForEach([&](SessionIndex i, const SessionRecord& session) {
    if (session.is_dead || !session.has_slots) return;
    if (session.domain_index != record.domain->domain_index) return;
    s.mapped_by.push_back(i);
    if (!session.is_hung_up) seams_.listener.OnSegmentRevoke(session.id, segment);
  });
  if (s.mapped_by.empty()) BeginPunch(record, segment);
}

void SegmentBroker::OnUnmapped(SessionIndex session, uint32_t segment) {
  DomainRecord& record = domains_[sessions_.at(session).domain_index];
  if (record.draining_count == 0) return;
  for (uint32_t i = 0; i < record.segments.size(); ++i) {
    if (segment != kSegmentNone && i != segment) continue;
    SegmentRecord& s = record.segments[i];
    if (s.use != Use::kRevoking) continue;
    std::erase(s.mapped_by, session);
    if (s.mapped_by.empty()) BeginPunch(record, i);
  }
}

void SegmentBroker::BeginPunch(DomainRecord& record, uint32_t segment) {
  record.segments[segment].use = Use::kPunching;
  record.domain->slots.SetSegmentState(segment, SegmentState::kPunching);
  record.domain->options.arena->BeginPunch(segment);
}

void SegmentBroker::OnPunched(uint32_t domain_index, uint32_t segment, Status status) {
  DomainRecord& record = domains_[domain_index];
  TERRACE_CHECK(record.segments[segment].use == Use::kPunching, "a segment is punched once");
  --record.draining_count;
  if (status.ok()) {
    record.segments[segment].use = Use::kNone;
    record.domain->slots.SetSegmentState(segment, SegmentState::kAbsent);
    --record.held_count;
    --held_total_;
  } else {
    // The pages are still there, and still this domain's.
    record.segments[segment].use = Use::kPopulated;
    record.domain->slots.SetSegmentState(segment, SegmentState::kFree);
  }
  Step();
}

}  // namespace terrace
