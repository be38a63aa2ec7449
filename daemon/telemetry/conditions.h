// Conditions: what a person should do something about in a domain now, each under a name. Status,
// the page, metrics and the log tell the same ones, since all ask here. A condition holds as long
// as its cause does; nobody has to acknowledge it.
//
// Pure: of figures that the store thread has filled. What it takes grows with drives in trouble.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/block/domain_stats.h"
#include "daemon/block/kv_event_sink.h"

namespace terrace {

enum class Condition : uint8_t {
  kBypassed,
  kDraining,
  kArenaShort,
  kDriveOff,
  kDriveFull,
  kDriveNotMounted,
  kDriveLosesPlaces,
  kSlabsLeftAlone,
  kTierAboveLimit,
  kBlocksTooLarge,
  kFilesAtLimit,
  kGroupsNotKept,
  kKeysNotErased,
  kCatalogOff,
  kRedisAway,
  kRedisNoWrites,
  kFencedMemory,
  kWrongChecksums,
  kKvEventsOff,
};
inline constexpr size_t kConditionCount = 19;
inline constexpr std::array<std::string_view, kConditionCount> kConditionNames = {
    "bypassed",         "draining",          "arena_short",        "drive_off",
    "drive_full",       "drive_not_mounted", "drive_loses_places", "slabs_left_alone",
    "tier_above_limit", "blocks_too_large",  "files_at_limit",     "groups_not_kept",
    "keys_not_erased",  "catalog_off",       "redis_away",         "redis_no_writes",
    "fenced_memory",    "wrong_checksums",   "kv_events_off"};

constexpr std::string_view NameOf(Condition condition) {
  return kConditionNames[static_cast<size_t>(condition)];
}

struct Trouble {
  Condition condition;
  std::string sentence;  // what, why, and what to do
  DriveTrouble drive;    // of kDriveOff, kDriveFull, kDriveNotMounted
};

// More than this share of a tier lost, and a person should know.
inline constexpr uint64_t kLostCapacityDivisor = 100;
// Wrong checksums are a condition for so long after the last ones.
inline constexpr uint64_t kRefutedRecentUs = 900'000'000;

bool IsCapacityLost(const TierStats& stats);

// None: all is well.
std::vector<Trouble> TroublesOf(const DomainFigures& domain,
                                const std::optional<KvEventCounters>& kv_events);

// "Input/output error (errno 5)".
std::string ErrorText(int32_t error);

}  // namespace terrace
