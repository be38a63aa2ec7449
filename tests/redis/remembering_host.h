// RememberingHost: a RedisRig that remembers what it was told to keep for a successor.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "redis/redis_rig.h"

namespace terrace::testing {

struct RememberingHost {
  explicit RememberingHost(const RedisEndpoint& endpoint, std::vector<GroupGeneration> before = {},
                           std::vector<KeptErasure> erased_before = {}) {
    RedisTier::Options options = RedisRig::Options(endpoint);
    options.memory = {std::move(before), std::move(erased_before)};
    options.keep = [this](uint64_t newest, const RedisMemory& all) {
      revision = newest;
      kept = all.generations;
      erased = all.erasures;
    };
    rig.emplace(std::move(options));
    rig->WaitUntilReady();
  }
  bool ForgetNow(const GroupId& group) {
    const uint64_t before = rig->tier().stats().forgets;
    rig->tier().Forget(group);
    return rig->RunUntil([&] { return rig->tier().stats().forgets > before; });
  }
  // What the group's generation is: an erasure asks that before it does anything.
  bool AskServer(const GroupId& group) {
    RedisBlockName nobodys = RedisTestName(7, 3);
    nobodys.group = group;
    rig->tier().Erase(nobodys);
    return rig->RunUntilErased();
  }

  uint64_t revision = 0;
  std::vector<GroupGeneration> kept;
  std::vector<KeptErasure> erased;
  std::optional<RedisRig> rig;
};

}  // namespace terrace::testing
