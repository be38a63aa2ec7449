// The world whose two domains are two hosts on one server: it is away, busy, and loses blocks.
#include "sim/world.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kBackOneIn = 60;
constexpr uint64_t kLosesOneIn = 2;  // blocks of a server whose replica takes over

}  // namespace

void World::RunServer(Domain& domain) {
  MemorySharedTier& shared = *domain.shared;
  if (dice_.Happens(Kind::kServerAway, 4'000)) shared.is_away = true;
  if (dice_.Happens(Kind::kServerFull, 4'000)) shared.is_full = true;
  if (background_random_.Pick(kBackOneIn) == 0) shared.is_away = shared.is_full = false;
  if (dice_.Happens(Kind::kServerLoses, 1'000)) {
    SimRandom fates(dice_.Word(Kind::kServerLoses));
    std::erase_if(server_.blocks, [&](const auto&) { return fates.Pick(kLosesOneIn) == 0; });
  }
  while (!shared.is_away && background_random_.Pick(3) != 0) {
    if (!shared.RunOne()) break;
  }
}

// Sealed blocks of the group, on either host, and what the server has of it.
std::set<CommitId> World::KnownCommits(uint32_t group_number) {
  std::set<CommitId> commits;
  if (has_successors()) return commits;  // Survival's
  ForEachBlock([&](uint32_t, uint32_t g, BlockKey, const protocol::QueriedBlock& block) {
    const bool is_sealed = block.state == protocol::BlockState::kSealed;
    if (g == group_number && is_sealed) commits.insert(block.commit_id);
  });
  const GroupId group = groups_[group_number].Id();
  for (const auto& [place, stored] : server_.blocks) {
    if (stored.record.group == group) commits.insert(stored.record.commit_id);
  }
  return commits;
}

void World::Forgotten(uint32_t domain_index, const std::set<CommitId>& commits) {
  for (const CommitId commit_id : commits) {
    forgotten_us_.emplace(std::pair(domain_index, commit_id), world_us_);
  }
}

bool World::WasForgotten(uint32_t domain_index, CommitId commit_id, uint64_t asked_us) const {
  const auto found = forgotten_us_.find({domain_index, commit_id});
  return found != forgotten_us_.end() && found->second < asked_us;
}

}  // namespace terrace::sim
