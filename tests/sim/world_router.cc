// What a router believes is what the store says.
#include <string>
#include <vector>

#include "sim/world.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kStepsDeafMax = 24;

std::string PlacesText(uint8_t places) {
  constexpr const char* kNames[kKvEventMediumCount] = {"dram", "nvme", "hbm", "redis"};
  std::string text;
  for (uint32_t medium = 0; medium < kKvEventMediumCount; ++medium) {
    if ((places >> medium & 1) != 0)
      text += (text.empty() ? "" : "+") + std::string(kNames[medium]);
  }
  return text.empty() ? "nowhere" : text;
}

}  // namespace

// As Query tells an operator of each domain.
Router::View World::ServedBlocks() {
  Router::View served;
  ForEachBlock([&](uint32_t d, uint32_t g, BlockKey key, const protocol::QueriedBlock& block) {
    const auto bit = [&](protocol::TierKind kind) {
      return (block.tier_mask >> static_cast<uint32_t>(kind)) & 1;
    };
    const uint64_t hash = EventHashOf(key);
    const auto places = static_cast<uint8_t>(
        bit(protocol::TierKind::kDram) | bit(protocol::TierKind::kNvme) << 1 |
        bit(protocol::TierKind::kHbm) << 2 | bit(protocol::TierKind::kRedis) << 3);
    if (hash != 0 && places != 0) served[{d, groups_[g].name, hash}] = places;
  });
  return served;
}

// What a tier that is off has, or was a moment ago, is told or not.
Router::View World::WithoutTiersOff(const Router::View& view) const {
  std::vector<uint8_t> judged;  // a bit per KvEventMedium, by domain
  for (const DomainStats& stats : store_->Stats()) {
    judged.push_back(0xFF);
    for (const auto& tier : stats.lower_tiers) {
      if (!tier.is_off && tier.stats.is_healthy) continue;
      const auto medium =
          tier.kind == TierKind::kHbm ? KvEventMedium::kDevice : KvEventMedium::kPersistent;
      judged.back() &= static_cast<uint8_t>(~(1u << static_cast<uint32_t>(medium)));
    }
  }
  Router::View rest;
  for (const auto& [name, places] : view) {
    const auto left = static_cast<uint8_t>(places & judged[name.domain_index]);
    if (left != 0) rest[name] = left;
  }
  return rest;
}

void World::CheckRouter() {
  // What was Sealed after its end, in this step's turns, is told of until its timer goes off.
  if (store_->events().NextTimerUs() <= clock_.NowUs()) store_->events().OnTimer();
  if (!router_.complaint().empty()) Fail("a router was told wrong: " + router_.complaint());
  const Router::View served = WithoutTiersOff(ServedBlocks());
  const Router::View believed_blocks = WithoutTiersOff(router_.view());
  ++router_checks_;
  if (served == believed_blocks) return;
  const auto places_in = [](const Router::View& view, const Router::Name& name) {
    const auto found = view.find(name);
    return found == view.end() ? uint8_t{0} : found->second;
  };
  Router::View all = served;
  all.insert(believed_blocks.begin(), believed_blocks.end());
  uint32_t difference_count = 0;
  std::string first;
  for (const auto& [name, places] : all) {
    const uint8_t believed = places_in(believed_blocks, name);
    const uint8_t is = places_in(served, name);
    if (believed == is || difference_count++ > 0) continue;
    first = "domain " + std::to_string(name.domain_index) + ", " + name.group + ", hash " +
            std::to_string(name.hash) + " is in " + PlacesText(is) +
            ", a router was told: " + PlacesText(believed);
  }
  Fail(first + " (and " + std::to_string(difference_count - 1) + " more)");
}

// A router without room is told what it missed, or every block anew, before the next check.
void World::MaybeLoseEvents(uint64_t steps_since_check) {
  if (steps_since_check == 0) {
    if (router_check_due_ || !dice_.Happens(Kind::kDeafRouters, 167'000)) return;
    const uint64_t word = dice_.Word(Kind::kDeafRouters);
    if (word >> 63 != 0) {
      router_.BeSlow();
    } else {
      router_.LoseRoom();
    }
    steps_deaf_ = 1 + word % kStepsDeafMax;
  } else if (!router_.is_well() && steps_since_check >= steps_deaf_) {
    LetRouterCatchUp();
  }
}

void World::LetRouterCatchUp() {
  const bool has_lost = !router_.has_room();
  router_.CatchUp();
  if (has_lost) store_->events().RepublishKvEvents();
}

}  // namespace terrace::sim
