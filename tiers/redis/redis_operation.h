// What is under way to a Redis server, as the store thread and the Redis thread hand it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "terrace/space.h"
#include "terrace/status.h"
#include "tiers/redis/redis_format.h"

namespace terrace {

// How often an erasure that failed is tried again, at once, before its group is forgotten.
inline constexpr uint32_t kErasesAgain = 4;

struct TierAnswer {
  enum class Kind : uint8_t { kFetch, kStore, kProbe, kErase, kLook, kRise };
  Kind kind = Kind::kFetch;
  uint64_t id = 0;  // of the operation, ours
  Status status;
  RedisManifest manifest;
  std::vector<bool> is_present;
  std::optional<uint64_t> generation;  // of its group, if the server was asked
};

struct TierOperation {
  TierAnswer::Kind kind = TierAnswer::Kind::kFetch;
  GroupId group;
  uint64_t caller_id = 0;
  uint64_t length_bytes = 0;
  uint64_t began_us = 0;
  std::vector<RedisBlockName> names;  // of a probe: all; else one
  std::vector<size_t> asked;          // of a probe: the indices that the servers were asked about
  size_t names_total = 0;
  uint32_t tries = 0;    // of an erasure, before this one
  uint64_t forgets = 0;  // of a rise: the group's when it began
};

}  // namespace terrace
