// Several hosts on one server, each with a network of its own that comes and goes: what a host was
// told to erase it never finds again, unless another one has it and gives it anew. Seeded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "redis/chaos_proxy.h"
#include "redis/redis_process.h"
#include "redis/redis_rig.h"

namespace terrace {
namespace {

using testing::ChaosProxy;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;

constexpr uint32_t kHosts = 3, kGroups = 2, kBlocks = 5;
constexpr size_t kLengthBytes = 1'000;

struct BlockOf {
  uint32_t group = 0, block = 0;

  RedisBlockName name() const {
    RedisBlockName name = RedisTestName(group, block);
    name.group = {group + 1, 7};
    name.space = {group + 1, 9};
    return name;
  }
  auto operator<=>(const BlockOf&) const = default;
};

// As a store uses the tier: what it has is given, unless it is of before what others had forgotten.
class Host {
 public:
  Host(const RedisProcess& server, uint64_t seed) : proxy_(server.unix_endpoint(), seed) {
    Start();
  }

  // Its successor knows what was kept, and has the blocks. What was not answered yet may come back.
  void Restart() {
    for (const Order& order : orders_) {
      if (!rig_->tier().IsDurable(order.mark)) continue;
      (order.is_of_group ? gone_ : gone_blocks_).insert(order.erased.begin(), order.erased.end());
    }
    orders_.clear();
    rig_.reset();
    Start();
  }
  void Cut() {
    proxy_.Refuse();
    is_cut_ = true;
  }
  void Heal() {
    proxy_.Accept();
    is_cut_ = false;
  }
  // What is owed may still be.
  void AwaitServer() {
    if (!is_cut_) rig_->RunTicking([&] { return rig_->tier().stats().is_ready; });
    Learn();
  }
  void AwaitErased() {
    const auto is_done = [&] {
      const SharedTierStats stats = rig_->tier().stats();
      return stats.is_ready && stats.forgets_owed == 0 && stats.erasures_owed == 0;
    };
    if (!is_cut_) rig_->RunTicking(is_done);
    Learn();
  }
  void LetGo(const BlockOf& of) { held_.erase(of); }
  void Tick() {
    rig_->tier().Tick();
    rig_->RunUntil([] { return true; });
    Learn();
  }

  bool Holds(const BlockOf& of) const { return held_.contains(of); }
  bool MayGive(const BlockOf& of, CommitId commit_id) const {
    const auto found = held_.find(of);
    return found != held_.end() && found->second == commit_id && !is_of_before_.contains(of);
  }
  void Write(const BlockOf& of, CommitId commit_id) {
    held_[of] = commit_id;
    is_of_before_.erase(of);
  }
  Status Give(const BlockOf& of) {
    if (!held_.contains(of) || is_of_before_.contains(of)) return Status(StatusCode::kNotFound);
    const Status stored = rig_->StoreNow(of.name(), held_.at(of), kLengthBytes);
    Learn();
    return stored;
  }
  RedisRig::Fetched Fetch(const BlockOf& of) {
    RedisRig::Fetched fetched = rig_->FetchNow(of.name(), kLengthBytes);
    if (fetched.status.ok()) Write(of, fetched.commit_id);
    Learn();  // before what came or behind it: if in doubt it is of before
    return fetched;
  }
  void Forget(uint32_t group, std::set<CommitId> commits) {
    rig_->tier().Forget(BlockOf{group, 0}.name().group);
    std::erase_if(held_, [&](const auto& one) { return one.first.group == group; });
    orders_.push_back({rig_->tier().MarkErasures(), std::move(commits), true});
  }
  void Erase(const BlockOf& of, bool is_by_key, std::set<CommitId> commits) {
    const RedisBlockName name = of.name();
    is_by_key ? rig_->tier().EraseByKey(name) : rig_->tier().Erase(name);
    held_.erase(of);
    orders_.push_back({rig_->tier().MarkErasures(), std::move(commits), false});
  }
  // Another host has fetched it, and gives it again: a block that is erased is no group forgotten.
  void IsElsewhere(CommitId commit_id) {
    gone_blocks_.erase(commit_id);
    for (Order& order : orders_) {
      if (!order.is_of_group) order.erased.erase(commit_id);
    }
  }
  bool IsGone(CommitId commit_id) const {
    return gone_.contains(commit_id) || gone_blocks_.contains(commit_id) ||
           std::ranges::any_of(
               orders_, [&](const Order& order) { return order.erased.contains(commit_id); });
  }

 private:
  void Start() {
    revision_ = 0;
    RedisTier::Options options = RedisRig::Options(proxy_.endpoint());
    options.breaker.probe_first_us = 5'000;
    options.breaker.probe_max_us = 10'000;
    options.memory = kept_;
    options.keep = [this](uint64_t revision, const RedisMemory& all) {
      kept_ = all;
      revision_ = revision;
    };
    rig_.emplace(std::move(options));
  }
  void Learn() {
    rig_->tier().Kept(revision_);
    for (const GroupId& group : std::exchange(rig_->forgotten, {})) {
      for (const auto& [of, commit_id] : held_) {
        if (of.name().group == group) is_of_before_.insert(of);
      }
    }
  }

  ChaosProxy proxy_;
  bool is_cut_ = false;
  struct Order {
    SharedErasureMark mark;
    std::set<CommitId> erased;
    bool is_of_group = false;
  };

  RedisMemory kept_;
  uint64_t revision_ = 0;
  std::optional<RedisRig> rig_;
  std::map<BlockOf, CommitId> held_;
  std::set<BlockOf> is_of_before_;
  std::vector<Order> orders_;
  std::set<CommitId> gone_, gone_blocks_;  // of predecessors' orders that were answered
};

class Hosts {
 public:
  explicit Hosts(uint64_t seed) : random_(seed) {
    for (uint32_t i = 0; i < kHosts; ++i)
      hosts_.push_back(std::make_unique<Host>(server_, seed + i));
  }

  void Step() {
    const auto at = static_cast<uint32_t>(random_() % kHosts);
    Host& host = *hosts_[at];
    const BlockOf of{static_cast<uint32_t>(random_() % kGroups),
                     static_cast<uint32_t>(random_() % kBlocks)};
    switch (random_() % 32) {
      case 0:
        if (random_() % 3 == 0) ForgetOn(at, of.group);
        return;
      case 1:
        return EraseOn(at, of, random_() % 2 == 0);
      case 2:
        if (random_() % 2 == 0) host.Cut();
        return;
      case 3:
        return host.Heal();
      case 4:
        if (random_() % 8 == 0) host.Restart();
        return;
      case 5:
      case 6:
        return host.Tick();
      case 7:
      case 8:
        return host.AwaitServer();
      case 9:
        if (random_() % 4 == 0) host.AwaitErased();
        return;
      case 10:
      case 11:
      case 12:
      case 13:
        return host.LetGo(of);
      default:
        break;
    }
    if (random_() % 3 == 0) {
      if (!host.Holds(of)) {
        host.Write(of, ++commits_);
        written_[of].insert(commits_);
      }
      if (host.Give(of).ok()) ++given;
      return;
    }
    if (!host.Holds(of)) FetchOn(at, of);
  }

  uint64_t given = 0, found = 0, forgets = 0, erasures = 0;

 private:
  void FetchOn(uint32_t at, const BlockOf& of) {
    const RedisRig::Fetched fetched = hosts_[at]->Fetch(of);
    ASSERT_TRUE(RedisRig::IsTrue(fetched, of.name(), kLengthBytes)) << "wrong bytes";
    if (!fetched.status.ok()) return;
    ++found;
    ASSERT_FALSE(hosts_[at]->IsGone(fetched.commit_id))
        << "host " << at << " finds commit " << fetched.commit_id << " of group " << of.group
        << ", block " << of.block << ", which it was told to erase";
    for (uint32_t i = 0; i < kHosts; ++i) {
      if (i != at) hosts_[i]->IsElsewhere(fetched.commit_id);
    }
  }
  void ForgetOn(uint32_t at, uint32_t group) {
    ++forgets;
    std::set<CommitId> erased;
    for (const auto& [of, commits] : written_) {
      if (of.group == group) erased.insert(commits.begin(), commits.end());
    }
    hosts_[at]->Forget(group, std::move(erased));
  }
  // Who has a block gives it again; erasing it by name or key tells no other host.
  void EraseOn(uint32_t at, const BlockOf& of, bool is_by_key) {
    ++erasures;
    std::set<CommitId> erased = written_[of];
    for (uint32_t i = 0; i < kHosts; ++i) {
      if (i == at) continue;
      std::erase_if(erased, [&](CommitId commit_id) { return hosts_[i]->MayGive(of, commit_id); });
    }
    hosts_[at]->Erase(of, is_by_key, std::move(erased));
  }

  RedisProcess server_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::map<BlockOf, std::set<CommitId>> written_;
  CommitId commits_ = 0;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const given = std::getenv(name);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

// PROMISE: T03 hosts that share a server and forget
TEST(RedisHosts, NoneFindsAgainWhatItWasToldToErase) {
  TERRACE_NEEDS_REDIS();
  const uint64_t first = FromEnvironment("TERRACE_SEED", 1);
  const uint64_t step_count = FromEnvironment("TERRACE_REDIS_OPERATIONS", 5'000);
  uint64_t given = 0, found = 0, forgets = 0, erasures = 0;
  for (uint64_t seed = first, steps = 0; steps < step_count; ++seed) {
    SCOPED_TRACE("TERRACE_SEED=" + std::to_string(seed));
    Hosts hosts(seed);
    for (int i = 0; i < 1'000; ++i, ++steps) ASSERT_NO_FATAL_FAILURE(hosts.Step()) << "step " << i;
    given += hosts.given;
    found += hosts.found;
    forgets += hosts.forgets;
    erasures += hosts.erasures;
  }
  std::printf("%llu blocks given, %llu found, %llu groups forgotten, %llu blocks erased\n",
              static_cast<unsigned long long>(given), static_cast<unsigned long long>(found),
              static_cast<unsigned long long>(forgets), static_cast<unsigned long long>(erasures));
  EXPECT_GT(given, step_count / 100);
  EXPECT_GT(found, step_count / 100);
}

}  // namespace
}  // namespace terrace
