// The world whose blocks outlive the daemon: it ends, another begins, and what it finds is judged.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/world.h"
#include "tiers/arena/slot_table.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kStepsPerCrash = 500;
constexpr uint64_t kStepsPerNote = 40;
constexpr uint32_t kStuckReleasedOneIn = 50;

}  // namespace

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
  if (!erases || !has_successors() || domains_[0].operator_session == 0) {
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
    if (random_.Pick(kStuckReleasedOneIn) == 0) domain.drive->disk().ReleaseStuck();
  }
}

void World::MaybeCrash() {
  if (!has_successors()) return;
  if (steps_ % kStepsPerNote == 0) survival_.Note(TakeSnapshot(), clock_.NowUs());
  if (random_.Pick(kStepsPerCrash) == 0) Crash();
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
  const bool may_lose =
      options_.drive_fault_rate_ppm > 0 || (has_drives() && AboveCapacity() + BeyondLimits() > 0);
  const auto promise = may_lose ? Survival::Promise::kNothing : Survival::Promise::kSurvival;
  const std::string verdict =
      survival_.Judge(TakeSnapshot(), options_.ending, promise, clock_.NowUs());
  if (!verdict.empty()) Fail("after the end of a daemon: " + verdict);
}

// Another daemon restores what the drives hold, and adopts DRAM where that outlives the first.
void World::Succeed() {
  Trace(0xC4A54000 + static_cast<uint64_t>(options_.ending));
  for (Domain& domain : domains_) {
    if (domain.drive) domain.drive->End(options_.ending);
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
  if (options_.drive_fault_rate_ppm > 0) return;
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
