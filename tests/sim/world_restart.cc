// The world whose blocks outlive the daemon: it ends, another begins, and what it finds is judged.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/world.h"
#include "tiers/arena/slot_table.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kShareWaitUs = 20'000'000;
constexpr uint64_t kStepsPerNote = 40;
constexpr uint32_t kStuckReleasedOneIn = 50;

}  // namespace

// Some worlds' drives are shared out in halves, some lend a part, some all but a slab.
std::vector<TierShares::Share> World::SharesOfDrives() const {
  const uint64_t guaranteed_slabs[] = {drive_slabs_ / 2, drive_slabs_ / 4, 1};
  const uint64_t kind = options_.swarm.value(Kind::kDriveShares);
  const bool lends = kind > 0;
  const uint64_t slabs = guaranteed_slabs[std::min<uint64_t>(kind, 2)];
  const auto with = [&](uint32_t priority) {
    return TierShares::Share{.guaranteed_bytes = slabs * Drive::kSlabBytes,
                             .max_bytes = (lends ? drive_slabs_ : slabs) * Drive::kSlabBytes,
                             .priority = priority};
  };
  return {with(50), with(kind == 3 ? 51 : 50)};
}

void World::ShareDrives() {
  shares_ = std::make_unique<TierShares>(TierShares::Lending::kAll,
                                         drive_slabs_ * Drive::kSlabBytes, SharesOfDrives());
  waits_since_us_ = leaving_bytes_ = 0;
}

// As an operator does, at any moment. Two slabs at least, one a domain.
void World::ResizeDrives() {
  drive_slabs_ = 2 + dice_.Word(Kind::kDriveResizes) % (kDriveSlabs - 1);
  shares_->Set(drive_slabs_ * Drive::kSlabBytes, SharesOfDrives());
  above_bytes_max_ = AboveCapacity();
  beyond_bytes_max_ = BeyondLimits();
  shrinks_ += above_bytes_max_ > 0;
  waits_since_us_ = 0;
}

uint64_t World::AboveCapacity() const {
  const uint64_t held_bytes = shares_->held_bytes_total();
  return held_bytes - std::min(held_bytes, shares_->capacity_bytes());
}

uint64_t World::BeyondLimits() const {
  uint64_t sum_bytes = 0;
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    const ShareStats share = shares_->stats(d, clock_.NowUs());
    sum_bytes += share.held_bytes - std::min(share.held_bytes, share.max_bytes);
  }
  return sum_bytes;
}

// What the start left alone counts and cannot go: its domain's other slabs go for it, all of them
// if need be (docs/OPERATIONS.md, a smaller tier).
bool World::AreDrivesDown() const {
  uint64_t left_bytes_total = 0;
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    const ShareStats share = shares_->stats(d, clock_.NowUs());
    const uint64_t left_bytes = domains_[d].drive->tier().stats().left_alone_bytes;
    if (share.held_bytes > share.max_bytes && share.held_bytes != left_bytes) return false;
    left_bytes_total += left_bytes;
  }
  return AboveCapacity() <= left_bytes_total;
}

std::string World::DescribeShares() const {
  std::string text = ": of " + std::to_string(shares_->capacity_bytes());
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    const ShareStats share = shares_->stats(d, clock_.NowUs());
    const TierStats tier = domains_[d].drive->tier().stats();
    text += "; " + std::to_string(share.held_bytes) + " held, " + std::to_string(share.max_bytes) +
            " at most, " + std::to_string(share.leaving_bytes) + " leaving, " +
            std::to_string(share.asked_bytes) + " asked, " + std::to_string(tier.used_bytes) +
            " used, " + std::to_string(tier.left_alone_bytes) + " left alone";
  }
  return text;
}

// The drives hold no more than there is, the ledger knows how much, and whoever wants what it is
// guaranteed has it before long.
void World::CheckShares() {
  uint64_t leaving_bytes = 0;
  bool waits = false;
  bool is_borrowed = false;
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    const ShareStats share = shares_->stats(d, clock_.NowUs());
    leaving_bytes += share.leaving_bytes;
    waits |=
        share.asked_bytes > 0 && share.held_bytes + share.asked_bytes <= share.guaranteed_bytes;
    is_borrowed |= share.borrowed_bytes > 0;
    if (domains_[d].drive->used_bytes() > share.held_bytes) {
      Fail("a drive has files that nobody counts");
    }
  }
  slabs_given_ += leaving_bytes > leaving_bytes_;
  leaving_bytes_ = leaving_bytes;
  // What is above a capacity that was lowered only ever falls, whatever ends the daemon.
  const uint64_t above_bytes = AboveCapacity(), beyond_bytes = BeyondLimits();
  if (above_bytes > above_bytes_max_) Fail("the drives hold more than there is");
  if (beyond_bytes > beyond_bytes_max_) Fail("a domain has more than its limit");
  above_bytes_max_ = above_bytes;
  beyond_bytes_max_ = beyond_bytes;
  waits |= above_bytes > 0 || beyond_bytes > 0;
  if (!waits || !is_borrowed) waits_since_us_ = 0;
  if (waits && is_borrowed && waits_since_us_ == 0) waits_since_us_ = clock_.NowUs();
  const bool is_late = waits_since_us_ != 0 && clock_.NowUs() > waits_since_us_ + kShareWaitUs;
  if (is_late && !drives_fail()) Fail("a guarantee is not given back");
}

void World::KeptGroups::Keep(uint32_t domain_index, const SpaceGroupSpec& spec) {
  kept[{domain_index, spec.name}] = spec;
}

void World::KeptGroups::Drop(uint32_t domain_index, const GroupId& id) {
  std::erase_if(kept, [&](const auto& entry) {
    return entry.first.first == domain_index && entry.second.Id() == id;
  });
}

GroupFiles::State World::KeptGroups::StateOf(uint32_t domain_index, const GroupId& id) const {
  const bool is_kept = std::ranges::any_of(kept, [&](const auto& entry) {
    return entry.first.first == domain_index && entry.second.Id() == id;
  });
  return is_kept ? State::kKept : State::kFailed;
}

void World::MissedByDrives::NoteErasure(uint32_t domain_index) {
  world->domains_[domain_index].drive->NoteErasure();
}

void World::DriveReports::OnTransferDone(TransferId transfer_id, Status status) {
  world->store_->events().OnTransferDone(transfer_id, status);
}

void World::DriveReports::OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                                      uint32_t member) {
  world->survival_.Written(commit_id, world->clock_.NowUs());
  world->store_->events().OnPersisted(domain_index, owner, commit_id, member);
}

void World::DriveReports::OnRecordInDoubt(uint32_t domain_index, uint32_t owner) {
  world->store_->events().OnRecordInDoubt(domain_index, owner);
}

void World::DriveReports::OnRoom(uint32_t domain_index) {
  world->store_->events().OnRoom(domain_index);
}

void World::OpenOperators() {
  for (Domain& domain : domains_) {
    const auto d = static_cast<uint32_t>(&domain - domains_.data());
    domain.operator_session = next_session_id_++;
    if (!store_->sessions()
             .Open({.id = domain.operator_session, .domain_index = d, .uid = 0})
             .ok()) {
      return Fail("no session for the operator");
    }
    domain.operator_groups.clear();
    for (const SpaceGroupSpec& spec : groups_) {
      OpenedGroup group;
      const Error opened = store_->sessions().OpenGroup(domain.operator_session, spec, &group);
      if (!opened.ok()) return Fail("the operator cannot open a group: " + opened.sentence());
      domain.operator_groups.push_back(group.group_index);
    }
  }
}

void World::CloseOperators() {
  for (Domain& domain : domains_) {
    if (domain.operator_session != 0) store_->sessions().ProofOfDeath(domain.operator_session);
    domain.operator_session = 0;
  }
}

void World::ForEachBlock(const std::function<void(uint32_t domain, uint32_t group, BlockKey key,
                                                  const protocol::QueriedBlock& block)>& visit) {
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      for (const std::vector<BlockKey>& chain : chains_) {
        std::vector<protocol::QueriedBlock> blocks;
        const KeysQuery query{.session = domains_[d].operator_session,
                              .group_index = domains_[d].operator_groups[g],
                              .keys = chain};
        if (!store_->operators().Query(query, &blocks).ok())
          Fail("the operator's Query was refused");
        for (size_t i = 0; i < blocks.size(); ++i) visit(d, g, chain[i], blocks[i]);
      }
    }
  }
}

Survival::Snapshot World::TakeSnapshot() {
  Survival::Snapshot snapshot;
  ForEachBlock([&](uint32_t d, uint32_t g, BlockKey key, const protocol::QueriedBlock& block) {
    if (block.state != protocol::BlockState::kSealed) return;
    snapshot[{d, g, key}] = {.commit_id = block.commit_id,
                             .is_persisted = (block.flags & protocol::kQueriedPersisted) != 0};
  });
  return snapshot;
}

// A request of a process; what an Evict or Reset erases at once is noted.
void World::DeliverRequest(SessionId session, const std::vector<std::byte>& bytes) {
  protocol::FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const bool erases =
      header.verb == protocol::Verb::kEvict || header.verb == protocol::Verb::kReset;
  const bool is_judged =
      has_successors() && domains_[0].operator_session != 0 &&
      !garbled_.contains(session);  // of its doubles none knows which is answered
  if (!erases || !is_judged) {
    return DeliverBytes(session, bytes);
  }
  const Survival::Snapshot before = TakeSnapshot();
  early_answers_.emplace();
  DeliverBytes(session, bytes);
  survival_.ErasureAsked(session, header.request_id, before, TakeSnapshot());
  const std::vector<Answer> answers = std::move(*early_answers_);
  early_answers_.reset();
  for (const Answer& answer : answers) {
    survival_.ErasureAnswered(answer.session, answer.request_id, answer.status);
  }
}

void World::NoteReply(SessionId session, std::span<const std::byte> frame) {
  protocol::FrameHeader header;
  protocol::ReplyPrefix prefix;
  if (!has_successors() || frame.size() < sizeof(header) + sizeof(prefix)) return;
  std::memcpy(&header, frame.data(), sizeof(header));
  std::memcpy(&prefix, frame.data() + sizeof(header), sizeof(prefix));
  const Answer answer{session, header.request_id, static_cast<StatusCode>(prefix.status)};
  if (early_answers_) {
    early_answers_->push_back(answer);
  } else {
    survival_.ErasureAnswered(answer.session, answer.request_id, answer.status);
  }
}

void World::RunDrives() {
  for (Domain& domain : domains_) {
    if (!domain.drive) continue;
    domain.drive->disk().RunUntil(clock_.NowUs());
    if (background_random_.Pick(kStuckReleasedOneIn) == 0) domain.drive->disk().ReleaseStuck();
  }
}

void World::MaybeCrash() {
  if (!has_successors()) return;
  if (steps_ % kStepsPerNote == 0) survival_.Note(TakeSnapshot(), clock_.NowUs());
  if (dice_.Happens(Kind::kDaemonEnds, 2'000)) Crash();
}

void World::Crash() {
  survival_.Note(TakeSnapshot(), clock_.NowUs());
  Succeed();
  if (options_.keeps_dram) LeaveGhosts();
  if (!failure_.empty()) return;
  store_->CheckInvariants(CheckScope::kFull);
  OpenOperators();
  CheckRouter();
  // What is above the capacity at a start goes at once.
  const bool may_lose = drives_fail() || (has_drives() && AboveCapacity() + BeyondLimits() > 0);
  const auto promise = may_lose ? Survival::Promise::kNothing : Survival::Promise::kSurvival;
  const std::string verdict = survival_.Judge(TakeSnapshot(), ending(), promise, clock_.NowUs());
  if (!verdict.empty()) Fail("after the end of a daemon: " + verdict);
}

// Another daemon restores what the drives hold, and adopts DRAM where that outlives the first.
void World::Succeed() {
  Trace(0xC4A54000 + static_cast<uint64_t>(ending()));
  for (Domain& domain : domains_) {
    if (domain.drive) domain.drive->End(ending());
  }
  EndClients();
  held_back_.clear();
  resumed_.clear();
  AddCounters(&lived_);
  store_.reset();
  sessions_.reset();
  offload_.Forget();
  for (Domain& domain : domains_) domain.arena->Abandon();
  const std::unique_ptr<TierShares> before = std::move(shares_);  // until its tiers have gone
  ShareDrives();
  for (Domain& domain : domains_) {
    if (!options_.keeps_dram) MakeArena(&domain);
    if (domain.drive) domain.drive->Begin(*shares_);
  }
  router_.Forget();
  MakeStore();
  Restore();
  if (options_.keeps_dram) AdoptDram();
  ++restarts_;
}

// Everything was evicted, and there was time. Of a table that could not be read at start nobody
// knew what to evict.
void World::CheckNothingComesBack() {
  if (drives_fail()) return;
  const uint64_t restored_before = blocks_restored_;
  Succeed();
  const Coverage sum = coverage();
  if (blocks_restored_ != restored_before || sum.blocks_adopted != lived_.blocks_adopted)
    Fail("blocks that were evicted came back");
}

void World::Restore() {
  for (const auto& [name, spec] : kept_groups_.kept) {
    if (!store_->restoration().RestoreGroup(name.first, spec).ok())
      Fail("a group cannot be restored");
  }
  for (uint32_t d = 0; d < domains_.size() && has_drives(); ++d) {
    const std::string problem = domains_[d].drive->Restore(*store_);
    if (!problem.empty()) Fail(problem);
    blocks_restored_ += store_->restoration().FinishRestore(d).blocks;
  }
}

}  // namespace terrace::sim
