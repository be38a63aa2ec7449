#include "daemon/transfer/relocations.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"
#include "terrace/checksum.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kMemoryAlignmentBytes = 4096;
constexpr uint64_t kBurstUs = 1'000'000;  // budget is not saved for longer

bool IsLater(Status status) {
  return status.code() == StatusCode::kBusy || status.code() == StatusCode::kUnsupported;
}

}  // namespace

Relocations::Relocations(CacheDomain& domain, Residency& residency, Evictor& evictor)
    : d_(domain),
      residency_(residency),
      evictor_(evictor),
      tier_(domain.persistent_tier),
      budget_since_us_(domain.NowUs()),
      progress_us_(domain.NowUs()) {}

// Drives may still write to the memory of what is on its way, for as long as the process lives.
Relocations::~Relocations() {
  static auto* kept = new std::vector<std::unique_ptr<std::byte, FreeMemory>>;
  for (Lane& lane : lanes_) {
    if (lane.phase != Phase::kIdle) kept->push_back(std::move(lane.memory));
  }
}

uint64_t Relocations::NumberOf(const Lane& lane) const {
  return uint64_t{d_.domain_index} << kDomainShift | kNumberBit |
         static_cast<uint64_t>(&lane - lanes_.data());
}

const LocalMember& Relocations::MemberOf(const Lane& lane) const {
  return d_.group_of(d_.block(lane.move.block)).locals()[lane.move.places[lane.move.next].local];
}

// Nobody has erased it meanwhile.
bool Relocations::IsCurrent(const Move& move) const {
  const Block& b = d_.block(move.block);
  return b.phase == BlockPhase::kSealed && b.commit_id == move.commit_id &&
         b.lower[tier_].state == CopyState::kReady;
}

// ---- turns ----

void Relocations::EarnBudget() {
  const uint64_t now_us = d_.NowUs();
  const uint64_t earned_us = std::min(now_us - budget_since_us_, kBurstUs);
  budget_since_us_ = now_us;
  budget_bytes_ = std::min(
      budget_bytes_ + static_cast<int64_t>(kBytesPerSecond / kUsPerMs * earned_us / kUsPerMs),
      static_cast<int64_t>(kBytesPerSecond));
}

void Relocations::Tick() {
  if (tier_ == kLowerTiersMax) return;
  EarnBudget();
  LookAtCopied();
  is_room_awaited_ = false;
  const bool is_pass_over = owners_.empty() && !has_more_owners_;
  if (is_pass_over && !Refill() && owners_.empty()) progress_us_ = d_.NowUs();
  const bool has_copies = !copied_.empty() || !durable_.empty();
  if (!has_copies && !is_stopped_ && d_.NowUs() - progress_us_ > kPatienceUs) {
    tier().GiveUpMoving();
    owners_.clear();
    has_more_owners_ = false;
    progress_us_ = d_.NowUs();
  }
  for (Lane& lane : lanes_) {
    if (lane.phase != Phase::kIdle) GoOn(lane);
  }
  Step();
}

bool Relocations::Refill() {
  std::vector<uint32_t> owners;
  has_more_owners_ = tier().AppendOwnersToMove(&owners);
  owners_.insert(owners_.end(), owners.begin(), owners.end());
  return has_more_owners_;
}

bool Relocations::MayBegin() const {
  return !is_stopped_ && !is_room_awaited_ && budget_bytes_ > 0 && copied_.size() < kMovesMax &&
         (has_more_owners_ || !owners_.empty());
}

bool Relocations::has_work() const {
  const bool has_lane =
      std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.phase == Phase::kIdle; });
  return !durable_.empty() || (has_lane && MayBegin());
}

void Relocations::Step() {
  for (uint32_t ended = 0; ended < kEndsPerStepMax && !durable_.empty(); ++ended) {
    const Move move = std::move(durable_.front());
    durable_.pop_front();
    End(move);
  }
  uint32_t looked_at = 0;
  for (Lane& lane : lanes_) {
    while (lane.phase == Phase::kIdle && MayBegin() && looked_at < kLooksPerStepMax) {
      if (owners_.empty()) {
        looked_at += kLooksPerStepMax / 4;  // the tier looks at many places
        (void)Refill();
        continue;
      }
      ++looked_at;
      const BlockId id = owners_.front();
      const Outcome outcome = Begin(id, lane);
      if (outcome == Outcome::kLater) return;
      owners_.pop_front();
      if (outcome != Outcome::kDropped) continue;
      progress_us_ = d_.NowUs();
      looked_at += kLooksPerStepMax / kEndsPerStepMax;
    }
  }
}

// ---- the beginning ----

Relocations::Outcome Relocations::Begin(BlockId id, Lane& lane) {
  if (id >= d_.index.id_count()) return Outcome::kPassedOver;
  const Block& b = d_.block(id);
  // Whoever is at it just now may be a move that is not over; and what is not persisted yet is told
  // of when it is.
  if (b.phase != BlockPhase::kSealed || b.lower[tier_].state != CopyState::kReady ||
      b.job_count > 0 || b.lower[tier_].unpersisted_count > 0) {
    return Outcome::kPassedOver;
  }
  std::vector<Place> places;
  const Status status = TakePlaces(id, &places);
  if (status.code() == StatusCode::kNotFound) {
    if (!residency_.candidates.MayDropLower(id, tier_)) return Outcome::kPassedOver;
    residency_.lifecycle.DropLower(id, tier_, DropReason::kNotWanted);
    return Outcome::kDropped;
  }
  if (IsLater(status)) {
    is_room_awaited_ = true;
    return Outcome::kLater;
  }
  if (!status.ok() || places.empty()) return Outcome::kPassedOver;
  lane.move = {.block = id, .commit_id = b.commit_id, .places = std::move(places)};
  lane.phase = Phase::kTaken;
  residency_.holds.Hold(id, HoldKind::kJob);
  Read(lane);
  return Outcome::kBegun;
}

// For all members that lie where they cannot stay, or for none.
Status Relocations::TakePlaces(BlockId id, std::vector<Place>* places) {
  const Block& b = d_.block(id);
  const Group& group = d_.group_of(b);
  const auto local_count = static_cast<uint32_t>(group.locals().size());
  Status status = Status::Ok();
  for (uint32_t local = 0; local < local_count && status.ok(); ++local) {
    if (!((b.lower[tier_].member_mask >> group.locals()[local].member) & 1)) continue;
    if (!tier().IsToMove(d_.group_of(b).extents().at(b.lower[tier_].row)[local])) continue;
    const Result<Extent> extent = evictor_.TakeExtentToMove(id, tier_, group.locals()[local]);
    status = extent.status();
    if (extent.ok()) places->push_back({.local = local, .to = *extent});
  }
  if (status.ok()) return status;
  for (const Place& place : *places) tier().Free(place.to);
  places->clear();
  return status;
}

// ---- copying ----

void Relocations::Read(Lane& lane) {
  if (!IsCurrent(lane.move)) return Fail(lane);
  const Block& b = d_.block(lane.move.block);
  const uint32_t local = lane.move.places[lane.move.next].local;
  const Extent& from = d_.group_of(b).extents().at(b.lower[tier_].row)[local];
  if (from.length_bytes > lane.memory_bytes) {
    lane.memory_bytes = RoundUp(from.length_bytes, kMemoryAlignmentBytes);
    lane.memory.reset(
        static_cast<std::byte*>(std::aligned_alloc(kMemoryAlignmentBytes, lane.memory_bytes)));
    TERRACE_CHECK(lane.memory != nullptr, "memory for one member of a block");
  }
  const Status status = tier().Read(NumberOf(lane), from, {lane.memory.get(), from.length_bytes});
  if (status.code() == StatusCode::kBusy) return;
  if (!status.ok()) return Fail(lane);
  budget_bytes_ -= static_cast<int64_t>(from.length_bytes);
  lane.phase = Phase::kReading;
}

void Relocations::Hash(Lane& lane) {
  if (!IsCurrent(lane.move)) return Fail(lane);
  const Block& b = d_.block(lane.move.block);
  const LocalMember& local = MemberOf(lane);
  ChecksumJob job{.id = NumberOf(lane)};
  for (uint32_t part = 0; part < local.part_count; ++part) {
    job.parts.push_back(
        {.bytes = {lane.memory.get() + local.part_offset_bytes[part], local.part_bytes[part]},
         .seed = ChecksumSeed(d_.options.secret, {.space = local.space,
                                                  .key = d_.index.node(lane.move.block).key,
                                                  .commit_id = b.commit_id,
                                                  .part_index = part})});
  }
  if (d_.seams.offload.Submit(std::move(job)).ok()) lane.phase = Phase::kHashing;
}

void Relocations::Write(Lane& lane) {
  if (!IsCurrent(lane.move)) return Fail(lane);
  const Place& place = lane.move.places[lane.move.next];
  BlockRecord record = d_.RecordOf(lane.move.block, MemberOf(lane));
  record.is_moved = true;
  const Status status =
      tier().Write(NumberOf(lane), place.to, record, {lane.memory.get(), place.to.length_bytes});
  if (status.code() == StatusCode::kBusy) return;
  if (!status.ok()) return Fail(lane);
  lane.move.written.push_back(record);
  lane.phase = Phase::kWriting;
}

// What waits for a queue that was full.
void Relocations::GoOn(Lane& lane) {
  if (lane.phase == Phase::kTaken) Read(lane);
  if (lane.phase == Phase::kRead) Hash(lane);
  if (lane.phase == Phase::kVerified) Write(lane);
}

void Relocations::OnTransferDone(uint64_t number, Status status) {
  Lane& lane = lanes_[number & (kLanes - 1)];
  TERRACE_CHECK(lane.phase == Phase::kReading || lane.phase == Phase::kWriting,
                "a transfer is done once");
  const bool was_read = lane.phase == Phase::kReading;
  lane.phase = was_read ? Phase::kRead : Phase::kTaken;
  if (!status.ok()) {
    Fail(lane);
  } else if (!was_read && ++lane.move.next == lane.move.places.size()) {
    lane.move.copied_us = progress_us_ = d_.NowUs();
    copied_.push_back(std::move(lane.move));
    lane.phase = Phase::kIdle;
  } else {
    GoOn(lane);
  }
  Step();
}

void Relocations::OnChecksumsDone(uint64_t number, std::span<const Checksum> roots) {
  Lane& lane = lanes_[number & (kLanes - 1)];
  TERRACE_CHECK(lane.phase == Phase::kHashing, "a job is done once");
  lane.phase = Phase::kVerified;
  const LocalMember& local = MemberOf(lane);
  const bool is_good =
      IsCurrent(lane.move) &&
      std::ranges::equal(
          roots,
          d_.roots_of(d_.block(lane.move.block)).subspan(local.first_root, local.part_count));
  // Who reads it next, or scrubs, acts on bytes that are wrong; they are not written once more.
  if (is_good) {
    Write(lane);
  } else {
    Fail(lane);
  }
  Step();
}

void Relocations::Fail(Lane& lane) {
  lane.phase = Phase::kIdle;
  GiveUp(lane.move);
}

// It stays where it is, unless it was erased.
void Relocations::GiveUp(const Move& move) {
  for (const Place& place : move.places) tier().Free(place.to);
  residency_.holds.LetGo(move.block, HoldKind::kJob);
}

// ---- the end ----

void Relocations::LookAtCopied() {
  std::deque<Move> copied = std::exchange(copied_, {});
  for (Move& move : copied) {
    MovedState worst = MovedState::kDurable;
    for (const Place& place : move.places) {
      const MovedState state = tier().StateOfMoved(place.to);
      if (state == MovedState::kLost) worst = state;
      if (state == MovedState::kComing && worst == MovedState::kDurable) worst = state;
    }
    const bool is_late = d_.NowUs() - move.copied_us > kDurableUs;
    if (worst == MovedState::kLost || !IsCurrent(move) ||
        (is_late && worst != MovedState::kDurable)) {
      GiveUp(move);
    } else if (worst == MovedState::kDurable && d_.block(move.block).job_count == 1) {
      durable_.push_back(std::move(move));
    } else {
      copied_.push_back(std::move(move));  // others read it where it was
    }
  }
}

void Relocations::End(const Move& move) {
  if (!IsCurrent(move)) return GiveUp(move);
  if (d_.block(move.block).job_count > 1) {
    copied_.push_back(move);
    return;
  }
  bool is_news = false;
  for (size_t i = 0; i < move.places.size(); ++i) {
    const LocalMember& local = d_.group_of(d_.block(move.block)).locals()[move.places[i].local];
    is_news |=
        static_cast<const BlockDescription&>(d_.RecordOf(move.block, local)) != move.written[i];
    residency_.lower.Move(move.block, tier_, move.places[i].local, move.places[i].to);
  }
  ++d_.counters.blocks_relocated;
  progress_us_ = d_.NowUs();
  if (is_news) residency_.updates.Note(move.block);
  residency_.holds.LetGo(move.block, HoldKind::kJob);
}

}  // namespace terrace
