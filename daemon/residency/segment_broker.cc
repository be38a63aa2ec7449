#include "daemon/residency/segment_broker.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kPopulateRetryUs = 1'000'000;
constexpr uint64_t kDrainPeriodUs = 10'000;
constexpr uint64_t kDrainGoOnUs = 2'000;  // where a step's blocks were not all
constexpr uint32_t kLeavingMax = 8;       // segments, when the whole is to be less
constexpr uint32_t kDrainBlocksPerStepMax = 256;
constexpr uint32_t kDrainSlotsPerStepMin = 1024;  // looked at, if there are so many
constexpr uint64_t kAheadBytesMax = uint64_t{1} << 30;
// A borrower whose segment has not left by then does not keep others from giving back theirs.
constexpr uint64_t kTakeBackPatienceUs = 1'000'000;

}  // namespace

SegmentBroker::SegmentBroker(const StoreOptions& options, const StoreSeams& seams,
                             SessionRegister& sessions)
    : options_(options), seams_(seams), sessions_(sessions), ledger_(options) {}

void SegmentBroker::AddDomain(CacheDomain* domain, Evictor* evictor) {
  ledger_.domains().push_back({.domain = domain, .evictor = evictor});
  ledger_.domains().back().segments.resize(domain->options.segments_max);
  SortByPriority();
}

// The highest first; alike, as they were added.
void SegmentBroker::SortByPriority() {
  by_priority_.resize(ledger_.domains().size());
  std::iota(by_priority_.begin(), by_priority_.end(), 0);
  std::ranges::stable_sort(by_priority_, std::greater(), [this](uint32_t domain_index) {
    return ledger_.domains()[domain_index].priority();
  });
}

void SegmentBroker::AdoptPopulated(uint32_t domain_index, uint32_t segment) {
  DomainRecord& record = ledger_.domains()[domain_index];
  ledger_.Hold(record, record.segments[segment], Use::kPopulated);
  record.domain->slots.SegmentPopulated(segment);
  record.has_tried = true;
}

uint32_t SegmentBroker::OwedBy(SessionIndex session) const {
  const DomainRecord& record = ledger_.domains()[sessions_.at(session).domain_index];
  if (record.draining_count == 0) return 0;
  return static_cast<uint32_t>(std::ranges::count_if(record.segments, [&](const auto& segment) {
    return segment.use == Use::kRevoking &&
           std::ranges::find(segment.mapped_by, session) != segment.mapped_by.end();
  }));
}

bool SegmentBroker::is_ready() const {
  return std::all_of(ledger_.domains().begin(), ledger_.domains().end(),
                     [](const DomainRecord& record) { return record.has_tried; });
}

bool SegmentBroker::has_work() const {
  if (may_be_above_ && ledger_.LeavingCount() < kLeavingMax) return true;
  return std::any_of(
      ledger_.domains().begin(), ledger_.domains().end(), [this](const DomainRecord& record) {
        if (record.domain->is_short()) return true;
        if (record.populating_count > 0 || record.draining_count > 0) return false;
        const uint32_t free_count = record.domain->slots.segment_count(SegmentState::kFree);
        if (free_count >= SpareWanted(record) || record.held_count >= record.segments.size()) {
          return false;
        }
        return ledger_.MayTakeOne(record) || record.held_count < record.guaranteed();
      });
}

void SegmentBroker::Step() {
  Shrink();
  // Domains below their guarantee first: what was taken back for one of them is not for others.
  for (const bool is_guaranteed : {true, false}) {
    for (const uint32_t domain_index : by_priority_) {
      DomainRecord& record = ledger_.domains()[domain_index];
      if (record.is_below() == is_guaranteed) Grow(record);
    }
  }
  for (DomainRecord& record : ledger_.domains()) {
    record.domain->shortages_seen.of_owner() = record.domain->shortages;
    TellRoom(record);
  }
}

void SegmentBroker::TellRoom(DomainRecord& record) const {
  const bool may_grow = record.held_count < record.segments.size() && ledger_.MayTakeOne(record);
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
  uint32_t budget = kDrainBlocksPerStepMax;
  for (DomainRecord& record : ledger_.domains()) {
    if (record.draining_count == 0) continue;
    for (uint32_t segment = 0; segment < record.segments.size(); ++segment) {
      if (budget == 0) return AwaitDrain(kDrainGoOnUs);
      if (record.segments[segment].use == Use::kDraining) StepDrain(record, segment, &budget);
    }
  }
}

void SegmentBroker::AwaitDrain(uint64_t period_us) {
  if (has_drain_timer_) return;
  has_drain_timer_ = true;
  seams_.deadlines.Add({.due_us = seams_.clock.NowUs() + period_us, .kind = DeadlineKind::kDrain});
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
  if (!ledger_.MayTakeOne(record)) {
    if (record.is_below() || domain.is_short()) TakeBack(record);
    return;
  }
  for (uint32_t segment = 0; segment < record.segments.size(); ++segment) {
    if (record.segments[segment].use != Use::kNone) continue;
    ledger_.Hold(record, record.segments[segment], Use::kPopulating);
    ++record.populating_count;
    domain.options.arena->BeginPopulate(segment);
    return;
  }
}

void SegmentBroker::OnPopulated(uint32_t domain_index, uint32_t segment, Status status) {
  DomainRecord& record = ledger_.domains()[domain_index];
  TERRACE_CHECK(record.segments[segment].use == Use::kPopulating, "a segment is populated once");
  --record.populating_count;
  record.has_tried = true;
  if (status.ok()) {
    record.segments[segment].use = Use::kPopulated;
    record.domain->slots.SegmentPopulated(segment);
  } else {
    ledger_.LetGo(record, record.segments[segment]);
    record.is_backing_off = true;
    seams_.deadlines.Add({.due_us = seams_.clock.NowUs() + kPopulateRetryUs,
                          .kind = DeadlineKind::kPopulateRetry,
                          .domain_index = domain_index});
  }
  Step();
}

void SegmentBroker::OnRetuned() {
  may_be_above_ = true;
  SortByPriority();
  Step();
}

void SegmentBroker::OnRetry(uint32_t domain_index) {
  ledger_.domains()[domain_index].is_backing_off = false;
  Step();
}

// ---- taking memory back ----

// Several at once: what a segment takes longest for is its clients and the kernel.
void SegmentBroker::Shrink() {
  if (!may_be_above_) return;
  uint32_t excess = ledger_.Excess();
  may_be_above_ = excess > 0;
  uint32_t budget = kDrainBlocksPerStepMax;
  uint32_t leaving_count = ledger_.LeavingCount();
  for (; excess > 0 && leaving_count < kLeavingMax; --excess) {
    DomainRecord* const from = ledger_.Borrower(SegmentLedger::Giving::kOrNot, nullptr);
    if (from == nullptr || !BeginDrain(*from, &budget)) return;
    ++leaving_count;
  }
}

// From whoever borrowed most; one segment on its way is enough, while it is on its way.
void SegmentBroker::TakeBack(const DomainRecord& taker) {
  const uint64_t now_us = seams_.clock.NowUs();
  for (const DomainRecord& record : ledger_.domains()) {
    if (record.draining_count > 0 && now_us < record.drain_began_us + kTakeBackPatienceUs) return;
  }
  DomainRecord* const borrower = ledger_.Borrower(SegmentLedger::Giving::kNothing, &taker);
  if (borrower == nullptr) return;
  uint32_t budget = kDrainBlocksPerStepMax;
  BeginDrain(*borrower, &budget);
}

bool SegmentBroker::BeginDrain(DomainRecord& record, uint32_t* budget) {
  const uint32_t segment = SegmentLedger::EmptiestSegment(record);
  if (segment == kSegmentNone) return false;
  record.segments[segment].use = Use::kDraining;
  ++record.draining_count;
  record.drain_began_us = seams_.clock.NowUs();
  record.domain->slots.BeginDrain(segment);
  StepDrain(record, segment, budget);
  return true;
}

// Drops what may be dropped, some a step; what is held keeps the segment until it is let go.
void SegmentBroker::StepDrain(DomainRecord& record, uint32_t segment, uint32_t* budget) {
  CacheDomain& domain = *record.domain;
  if (*budget > 0 && !domain.slots.IsDrained(segment)) {
    scratch_slots_.clear();
    uint32_t& chunk = record.segments[segment].drain_chunk;
    chunk = domain.slots.SlotsInSegment(segment, chunk, kDrainSlotsPerStepMin, &scratch_slots_);
    seams_.work += scratch_slots_.size();
    for (const SlotRef& slot : scratch_slots_) {
      if (*budget == 0) break;
      if (!domain.slots.IsCurrent(slot)) continue;
      const BlockId id = record.evictor->BlockIn(slot);
      if (id == kBlockNone) continue;
      const EraseCauseScope scope(*record.domain, protocol::MissCause::kQuota);
      record.evictor->DropDramSubtree(id, Evictor::Pins::kGive, budget);
    }
  }
  if (domain.slots.IsDrained(segment)) {
    BeginRevoke(record, segment);
  } else {
    AwaitDrain(*budget == 0 ? kDrainGoOnUs : kDrainPeriodUs);
  }
}

void SegmentBroker::BeginRevoke(DomainRecord& record, uint32_t segment) {
  SegmentLedger::Segment& s = record.segments[segment];
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
  DomainRecord& record = ledger_.domains()[sessions_.at(session).domain_index];
  if (record.draining_count == 0) return;
  for (uint32_t i = 0; i < record.segments.size(); ++i) {
    if (segment != kSegmentNone && i != segment) continue;
    SegmentLedger::Segment& s = record.segments[i];
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
  DomainRecord& record = ledger_.domains()[domain_index];
  TERRACE_CHECK(record.segments[segment].use == Use::kPunching, "a segment is punched once");
  --record.draining_count;
  if (status.ok()) {
    ledger_.LetGo(record, record.segments[segment]);
    record.domain->slots.SetSegmentState(segment, SegmentState::kAbsent);
  } else {
    // The pages are still there, and still this domain's.
    record.segments[segment].use = Use::kPopulated;
    record.domain->slots.SetSegmentState(segment, SegmentState::kFree);
    may_be_above_ = true;
  }
  Step();
}

}  // namespace terrace
