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
constexpr uint32_t kDrainCostPerStepMax = 256 * SubtreeWalk::kDropCost;
constexpr uint32_t kDrainSlotsPerStepMin = 1024;  // looked at, if there are so many
constexpr uint64_t kAheadBytesMax = uint64_t{1} << 30;
// A borrower whose segment has not left by then does not keep others from giving back theirs.
constexpr uint64_t kTakeBackPatienceUs = 1'000'000;
// So long what a segment holds may be held before another goes instead, and is left alone then.
constexpr uint64_t kHeldPatienceUs = 1'000'000;
// Of segments to choose from: slots looked at, and chains behind one that are few.
constexpr uint32_t kChoiceSlotsMax = 1024;
constexpr int64_t kFewChains = 2;
constexpr uint64_t kDroppingUs = 30'000;  // a drain that dropped nothing for so long is held up
constexpr uint64_t kGivenUpUs = 60'000'000;

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
  record.is_adopting = true;
}

void SegmentBroker::OnAdopted(uint32_t domain_index) {
  ledger_.domains()[domain_index].is_adopting = false;
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

// What still holds a draining segment may have let go. Each has its turn to begin with.
void SegmentBroker::OnDrainTimer() {
  has_drain_timer_ = false;
  uint32_t budget = kDrainCostPerStepMax;
  std::vector<std::pair<DomainRecord*, uint32_t>> draining;
  for (DomainRecord& record : ledger_.domains()) {
    for (uint32_t i = 0; record.draining_count > 0 && i < record.segments.size(); ++i) {
      if (record.segments[i].use == Use::kDraining) draining.emplace_back(&record, i);
    }
  }
  bool has_given_up = false;
  ++drain_turn_;
  for (size_t i = 0; i < draining.size(); ++i) {
    const auto [record, segment] = draining[(drain_turn_ + i) % draining.size()];
    if (budget == 0) {
      AwaitDrain(kDrainGoOnUs);
      break;
    }
    StepDrain(*record, segment, &budget);
    // One at a time, as what goes instead of it is one.
    has_given_up = has_given_up || GiveUp(*record, segment);
  }
  if (may_be_above_) Step();
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
  record.has_failed = !status.ok();
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
  DomainRecord& record = ledger_.domains()[domain_index];
  record.is_backing_off = false;
  Step();
  if (record.populating_count == 0) record.has_failed = false;  // it wants no more, or gets others'
}

// ---- taking memory back ----

// Several at once: what a segment takes longest for is its clients and the kernel. Blocks leave one
// after the other, so that the next segment is chosen by what is left.
void SegmentBroker::Shrink() {
  if (!may_be_above_) return;
  uint32_t excess = ledger_.Excess();
  may_be_above_ = excess > 0;
  uint32_t budget = kDrainCostPerStepMax;
  uint32_t leaving_count = ledger_.LeavingCount();
  for (; excess > 0 && leaving_count < kLeavingMax; --excess) {
    DomainRecord* const from = ledger_.Borrower(SegmentLedger::Giving::kOrNot, nullptr);
    if (from == nullptr || IsDropping() || !BeginDrain(*from, &budget)) return;
    ++leaving_count;
  }
}

bool SegmentBroker::IsDropping() const {
  const uint64_t now_us = seams_.clock.NowUs();
  return std::ranges::any_of(ledger_.domains(), [now_us](const DomainRecord& record) {
    return record.draining_count > 0 &&
           std::ranges::any_of(record.segments, [now_us](const SegmentLedger::Segment& s) {
             return s.use == Use::kDraining && now_us < s.progress_us + kDroppingUs;
           });
  });
}

// From whoever borrowed most; one segment on its way is enough, while it is on its way.
void SegmentBroker::TakeBack(const DomainRecord& taker) {
  const uint64_t now_us = seams_.clock.NowUs();
  for (const DomainRecord& record : ledger_.domains()) {
    if (record.draining_count > 0 && now_us < record.drain_began_us + kTakeBackPatienceUs) return;
  }
  DomainRecord* const borrower = ledger_.Borrower(SegmentLedger::Giving::kNothing, &taker);
  if (borrower == nullptr) return;
  uint32_t budget = kDrainCostPerStepMax;
  BeginDrain(*borrower, &budget);
}

// A segment takes along what hangs on its blocks, wherever that is. Where the block lies that the
// policy wants gone next, or the emptiest; another if many chains go on from there elsewhere, as
// from the segment that a shared beginning lies in.
uint32_t SegmentBroker::SegmentToDrain(const DomainRecord& record) {
  const uint64_t given_up_since_us = GivenUpSince();
  const uint32_t emptiest = SegmentLedger::EmptiestSegment(record, given_up_since_us);
  if (emptiest == kSegmentNone) return SegmentLedger::LongestGivenUp(record);
  const SlotAllocator& slots = record.domain->slots;
  uint32_t candidate = VictimsSegment(record);
  if (candidate == kSegmentNone || !record.segments[candidate].MayGo(given_up_since_us) ||
      slots.slots_used_in(candidate) / 2 > slots.slots_used_in(emptiest)) {
    candidate = emptiest;
  }
  uint32_t best = candidate;
  int64_t fewest = INT64_MAX;
  uint32_t budget = kChoiceSlotsMax;
  const auto count = static_cast<uint32_t>(record.segments.size());
  for (uint32_t i = 0; i <= count && budget > 0 && fewest > kFewChains; ++i) {
    if (i > 0) candidate = choice_turn_++ % count;
    if (i > 0 && candidate == best) continue;
    if (!record.segments[candidate].MayGo(given_up_since_us)) continue;
    const int64_t chains = ChainsThatGoOn(record, candidate, &budget);
    if (chains < fewest) {
      fewest = chains;
      best = candidate;
    }
  }
  return best;
}

uint64_t SegmentBroker::GivenUpSince() const {
  const uint64_t now_us = seams_.clock.NowUs();
  return now_us - std::min(now_us, kGivenUpUs);
}

uint32_t SegmentBroker::VictimsSegment(const DomainRecord& record) {
  const CacheDomain& domain = *record.domain;
  const BlockId victim = domain.dram_policy->Victim();
  if (victim == kBlockNone) return kSegmentNone;
  for (const SlotRef& slot : domain.slots_of(domain.block(victim))) {
    if (domain.slots.IsCurrent(slot)) return slot.address.segment;
  }
  return kSegmentNone;
}

// Children of its blocks, without those that lie in it themselves.
int64_t SegmentBroker::ChainsThatGoOn(const DomainRecord& record, uint32_t segment,
                                      uint32_t* budget) {
  const CacheDomain& domain = *record.domain;
  const auto lies_here = [&](BlockId id) {
    if (id == kBlockNone || domain.block(id).dram.row == kRowNone) return false;
    const std::span<const SlotRef> slots = domain.slots_of(domain.block(id));
    return std::ranges::any_of(
        slots, [segment](const SlotRef& slot) { return slot.address.segment == segment; });
  };
  scratch_slots_.clear();
  domain.slots.SlotsInSegment(segment, 0, *budget, &scratch_slots_);
  int64_t count = 0;
  for (const SlotRef& slot : scratch_slots_) {
    if (*budget == 0) break;
    --*budget;
    const BlockId id = record.evictor->BlockIn(slot);
    if (id == kBlockNone) continue;
    count += domain.block(id).dram_children;
    if (lies_here(domain.index.node(id).parent)) --count;
  }
  return count;
}

bool SegmentBroker::BeginDrain(DomainRecord& record, uint32_t* budget) {
  if (record.is_adopting) return false;
  const uint32_t segment = SegmentToDrain(record);
  if (segment == kSegmentNone) return false;
  const uint64_t now_us = seams_.clock.NowUs();
  SegmentLedger::Segment& s = record.segments[segment];
  s.use = Use::kDraining;
  s.drain_chunk = 0;
  s.drain_row = 0;
  s.progress_us = now_us;
  ++record.draining_count;
  record.drain_began_us = now_us;
  record.domain->slots.BeginDrain(segment);
  StepDrain(record, segment, budget);
  return true;
}

// Drops what may be dropped, some a step; what is held keeps the segment until it is let go.
void SegmentBroker::StepDrain(DomainRecord& record, uint32_t segment, uint32_t* budget) {
  const SlotAllocator& slots = record.domain->slots;
  if (*budget > 0 && !slots.IsDrained(segment)) DropSome(record, segment, budget);
  if (slots.IsDrained(segment)) {
    BeginRevoke(record, segment);
  } else {
    AwaitDrain(*budget == 0 ? kDrainGoOnUs : kDrainPeriodUs);
  }
}

void SegmentBroker::DropSome(DomainRecord& record, uint32_t segment, uint32_t* budget) {
  SegmentLedger::Segment& s = record.segments[segment];
  if (s.drain_walk.is_on() && !DropBehindWalk(record, s, budget)) return;
  CacheDomain& domain = *record.domain;
  scratch_slots_.clear();
  const uint32_t next_chunk =
      domain.slots.SlotsInSegment(segment, s.drain_chunk, kDrainSlotsPerStepMin, &scratch_slots_);
  seams_.work += scratch_slots_.size();
  for (const SlotRef& slot : scratch_slots_) {
    // Slots are listed by their rows: a step goes on with the row that the one before ended at.
    if (slot.row < s.drain_row || !domain.slots.IsCurrent(slot)) continue;
    const BlockId id = record.evictor->BlockIn(slot);
    if (id == kBlockNone) continue;
    s.drain_row = slot.row;
    if (*budget == 0) return;
    s.drain_walk = record.evictor->WalkFrom(id);
    if (!DropBehindWalk(record, s, budget)) return;
  }
  s.drain_chunk = next_chunk;
  s.drain_row = 0;
}

bool SegmentBroker::DropBehindWalk(DomainRecord& record, SegmentLedger::Segment& segment,
                                   uint32_t* budget) {
  const EraseCauseScope scope(*record.domain, protocol::MissCause::kQuota);
  const uint32_t before = record.domain->slots.usage().slots_used;
  const WalkEnd end =
      record.evictor->DropDramSubtree(Evictor::Pins::kGive, &segment.drain_walk, budget);
  if (record.domain->slots.usage().slots_used < before) segment.progress_us = seams_.clock.NowUs();
  return end != WalkEnd::kBudget;
}

// Another segment may be had sooner than what is held in this one is let go. True if this one
// serves again.
bool SegmentBroker::GiveUp(DomainRecord& record, uint32_t segment) {
  SegmentLedger::Segment& s = record.segments[segment];
  const uint64_t now_us = seams_.clock.NowUs();
  if (s.use != Use::kDraining || s.drain_walk.is_on()) return false;
  if (now_us < s.progress_us + kHeldPatienceUs) return false;
  if (SegmentLedger::EmptiestSegment(record, GivenUpSince()) == kSegmentNone) return false;
  s.use = Use::kPopulated;
  s.given_up_us = now_us;
  --record.draining_count;
  record.domain->slots.EndDrain(segment);
  may_be_above_ = true;
  return true;
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
