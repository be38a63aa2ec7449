// DomainStats: what a domain says of itself: what it has counted since the start, and what it holds
// now. Who asks often takes the part that is quick to take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "daemon/block/domain_options.h"
#include "daemon/block/group_files_trouble.h"
#include "daemon/block/session_quota.h"
#include "daemon/block/store_listener.h"
#include "daemon/policy/histogram.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"
#include "terrace/space.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/shared_tier.h"
#include "tiers/tier.h"

namespace terrace {

inline constexpr size_t kCopyClientsShownMax = 64;

// Verbs whose requests are timed, from the message to its answer.
enum class TimedVerb : uint8_t { kAcquire, kReserve, kCommit };
inline constexpr size_t kTimedVerbCount = 3;

// Counted since the start; only numbers, copied as one piece.
struct DomainCounters {
  uint64_t match_requests = 0, match_blocks_asked = 0, match_blocks_hit = 0;
  uint64_t acquire_blocks_lost = 0;  // promised, and did not come in time
  // What HitMeter says of blocks, in tokens, and what was hit in bytes.
  uint64_t acquire_tokens_asked = 0;
  uint64_t acquire_tokens_by_tier[protocol::kTierKindCount] = {};
  uint64_t acquire_bytes_by_tier[protocol::kTierKindCount] = {};
  uint64_t sealed_bytes = 0;
  RequestTimes request_us[kTimedVerbCount];               // by TimedVerb
  PromotionTimes promotion_us[protocol::kTierKindCount];  // from slots taken to bytes verified
  AgesOfBlocks residence_us;    // from being sealed, or found at a start, to being forgotten
  AgesOfBlocks dram_idle_us;    // since its last use, of a copy that left DRAM to make room
  uint64_t blocks_adopted = 0;  // a predecessor's, found again in DRAM
  uint64_t blocks_sealed = 0, blocks_evicted = 0, blocks_expired = 0, blocks_corrupt = 0;
  uint64_t blocks_refuted = 0;  // of blocks_corrupt: not what their writer's checksums say
  uint64_t parts_refused = 0;   // by a lossy codec, in clients
  uint64_t reserve_exists = 0, reserve_busy = 0, reserve_no_space = 0;
  uint64_t reserve_passed_by = 0;  // ranked below all that was there
  uint64_t commits_gone = 0, leases_revoked = 0, checksums_verified = 0;
  uint64_t blocks_relocated = 0;  // within the persistent tier, which was to be smaller
  uint64_t scrub_members = 0, scrub_bytes = 0, scrub_passes = 0, scrub_mismatches = 0;
  uint64_t promotions = 0, promotions_failed = 0, promotions_cancelled = 0;
  uint64_t reads_repeated = 0, reads_recovered = 0;     // wrong once; right the second time
  uint64_t read_ahead_blocks = 0, read_ahead_used = 0;  // promoted unasked; asked for since
  uint64_t demotions = 0, demotions_failed = 0;
  uint64_t device_blocks_served = 0;
  uint64_t requests_unserved = 0;  // while the domain was drained or bypassed
  uint64_t pin_hints_dropped = 0;  // without an end, of who is no admin where admins are named
};
static_assert(std::is_trivially_copyable_v<DomainCounters>);

// With what the domain holds now. What it takes to fill one does not grow with blocks, groups or
// sessions.
struct DomainFigures : DomainCounters {
  uint64_t write_bytes_per_day = 0;  // UINT64_MAX: any number
  uint64_t segment_bytes = 0;
  uint32_t segments_populated = 0, segments_max = 0, segments_guaranteed = 0;
  // The most it may hold by now: of its own limit, for which clients have mapped segments_max, and
  // of what all domains may have together the lesser.
  uint64_t dram_capacity_bytes = 0;
  // Of the populated: beyond the guarantee; on their way to another domain.
  uint32_t segments_borrowed = 0, segments_leaving = 0;
  uint64_t arena_page_bytes = 0;  // of the system's pages that memory is of
  std::string arena_shortage;     // why it gets less memory than it wants; empty: it does not
  uint64_t slot_bytes_used = 0;   // of populated memory, in slots that hold or await bytes
  // in extents but not in any slot, or free slots of another class
  uint64_t slot_bytes_stranded = 0;
  uint64_t fenced_bytes = 0, fenced_bytes_max = 0;
  uint64_t inherited_bytes = 0;  // fenced, too: a predecessor's clients may still touch them
  uint32_t session_count = 0, group_count = 0, lease_count = 0, fenced_slot_count = 0;
  uint64_t block_count = 0, reserved_count = 0, pinned_count = 0;
  // What clients have pinned by themselves, and what names keep (a block under two counts twice).
  uint64_t engine_pinned_blocks = 0, engine_pinned_bytes = 0;
  uint64_t named_pinned_blocks = 0, named_pinned_bytes = 0;
  // Of Acquires, as HitMeter counts them: blocks_asked is what was hit, missed, or still comes.
  protocol::HitRateCounts hits;
  ReuseDistances reuse_distances;
  SessionRefusals sessions_refused{};
  protocol::ServingMode serving = protocol::ServingMode::kServing;
  // Until the scrub reads again: 0 in a pass. UINT64_MAX: it does not.
  uint64_t scrub_rest_us = UINT64_MAX;
  // Since a block was refuted last. UINT64_MAX: none has been.
  uint64_t refuted_ago_us = UINT64_MAX;
  std::optional<RefutedWriter> refuted_writer;  // the last one that is known
  uint64_t acquire_blocks_hit() const { return BlocksHit(hits); }
  static uint64_t BlocksHit(const protocol::HitRateCounts& hits) {
    uint64_t sum = 0;
    for (const uint64_t of_tier : hits.blocks_hit) sum += of_tier;
    return sum;
  }
  struct LowerTierStats {
    TierKind kind = TierKind::kNvme;
    TierStats stats;
    uint64_t block_count = 0, persisted_block_count = 0;
    uint64_t written_bytes_of_day = 0;
    uint64_t reads_queued = 0, writes_queued = 0;  // blocks whose turn has not come
    std::vector<DriveTrouble> troubles = {};       // of its drives that are off or full
    bool is_off = false;                           // the store asks it for nothing
  };
  std::vector<LowerTierStats> lower_tiers;
  GroupFilesTrouble group_files;
  struct SharedStats {
    SharedTierStats tier;
    uint64_t queued_blocks = 0, queued_bytes = 0, queue_bytes_max = 0;
    uint64_t stores_under_way = 0;  // blocks
    uint64_t blocks_stored = 0, blocks_existing = 0, blocks_failed = 0;
    uint64_t blocks_dropped = 0;     // the queue was full
    uint64_t blocks_outdated = 0;    // left DRAM before their turn
    uint64_t blocks_unnamed = 0;     // their place in their chain is not known here
    uint64_t blocks_over_quota = 0;  // their domain's share was used up
    uint64_t seeks = 0, seeks_joined = 0, seeks_late = 0;
    uint64_t blocks_found = 0;  // may be there
    uint64_t blocks_fetched = 0, blocks_missed = 0, blocks_cancelled = 0;
    uint64_t blocks_not_worth = 0;  // faster computed than fetched
    ShareStats share;               // of what was given lately; max_bytes 0: there is no limit
  };
  std::optional<SharedStats> shared;
  struct DeviceStats {
    std::string device;
    std::string why;
    HbmTier::OrderStats orders;
    uint64_t blocks_served = 0;  // answered where they lie there
  };
  std::optional<DeviceStats> device;
};

// The first groups of a domain, as metrics show them; of all others they show the sum.
struct ShownGroups {
  struct Label {
    std::string name;
    uint32_t block_tokens = 0;
  };
  struct Counts {
    uint64_t block_count = 0;
    uint64_t blocks_asked = 0, saved_us = 0;
    uint64_t blocks_hit[protocol::kTierKindCount] = {};
  };
  std::vector<Label> labels;  // copied only when the domain's groups are others
  uint64_t labels_revision = 0;
  std::vector<Counts> counts;
};

// All that a domain says of itself.
struct DomainStats : DomainFigures {
  std::string name;
  std::string eviction_policy, lower_eviction_policy, admission_policy;
  std::vector<RefutedWriter> refuted_writers;  // the last one told of comes last
  struct GroupStats {
    std::string name;
    GroupId id;
    uint32_t member_count = 0, block_tokens = 0;
    uint64_t block_count = 0, block_bytes = 0;
    uint32_t recompute_ns_per_token = 0;  // as a client said last
    protocol::HitRateCounts hits;
  };
  std::vector<GroupStats> groups;
  // Of sessions that have reported what makes their copies.
  struct CopyClient {
    SessionId session = 0;
    std::string backend;
    std::string why;
    protocol::DeviceReport counts;  // texts as they came
  };
  struct CopyStats {
    uint32_t client_count = 0;
    uint64_t pinned_bytes = 0;
    uint64_t straight_bytes = 0;
    uint64_t bounced_bytes = 0;
    uint64_t registrations_failed = 0;
    std::vector<CopyClient> clients;  // kCopyClientsShownMax at most
  };
  CopyStats copies;
};

}  // namespace terrace
