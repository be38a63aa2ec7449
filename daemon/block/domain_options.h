// What a Store and its domains are made of and held to; and who opens a session of one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/block/absent_places.h"
#include "daemon/block/kv_event_sink.h"
#include "daemon/block/seams.h"
#include "daemon/block/session_quota.h"
#include "daemon/block/shared_copies.h"
#include "daemon/block/store_listener.h"
#include "terrace/arena_layout.h"
#include "terrace/checksum.h"
#include "terrace/prefix_hasher.h"
#include "terrace/units.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/shared_tier.h"
#include "tiers/tier.h"
#include "tiers/tier_shares.h"

namespace terrace {

// The tier that a domain shares with other hosts, and what it does with it.
struct SharedUse {
  SharedTier* tier = nullptr;    // outlives the Store
  TierShares* shares = nullptr;  // likewise: of what is given within window_us; none: any number
  uint64_t window_us = 0;        // how long the tier keeps what it is given; > 0 with shares
  bool is_storing = true;
  bool is_fetching = true;
  bool is_storing_hits_only = false;      // what was asked for once more
  uint64_t queue_bytes_max = 256 * kMiB;  // of blocks waiting to be stored
  uint64_t seek_us = 10'000;              // how long an Acquire waits to learn what is there
  uint32_t copies_max = SharedCopies::kCopiesMax;  // that are known to be there
};

// The memory of a device that clients of the domain map, and what the domain does with it.
struct DeviceUse {
  HbmTier* tier = nullptr;  // outlives the Store
  std::string device;       // as clients name it
  std::string why;          // it is that one, for status
  uint32_t hits_min = 2;    // a block goes there when it is hit so often by clients of the device
};

// One trust boundary. Everything a domain has is its own: arena, index, leases, secret. A session
// of one domain cannot name anything of another; what it asks for there is kNotFound.
struct DomainOptions {
  std::string name;
  DomainSecret secret{};
  KeyHash key_hash = KeyHash::kXxh3;
  uint64_t segment_bytes = kSegmentBytesDefault;
  uint32_t segments_guaranteed = 0;  // never taken by other domains
  uint32_t segments_lent_max = 0;    // of those: others may have so many until they are wanted
  uint32_t segments_max = 0;         // size of its arena's address space; > 0
  uint32_t borrow_priority = 0;      // of borrowers of segments the lower gives first
  uint32_t ttl_default_s = 0;        // of blocks that are stored without one; 0: none
  ArenaMemory* arena = nullptr;      // outlives the Store
  std::span<std::byte> slot_table;   // SlotTableBytes(); daemon-private
  uint64_t table_seed = 0;           // of its rows' checks; the same for a successor
  // What a predecessor had populated; AdoptSlots follows.
  std::vector<uint32_t> populated_segments;
  std::vector<Tier*> lower_tiers;             // fastest first; outlive the Store
  uint64_t write_bytes_per_day = UINT64_MAX;  // to them; > 0, UINT64_MAX: any number
  std::vector<std::string> allow_models;      // as patterns with * and ?; empty: any
  uint64_t scrub_bytes_per_second = 0;  // how fast the persistent tier is verified; 0: not at all
  uint64_t scrub_interval_us = 0;       // from one pass's begin to the next's, at least
  KvEventSink* kv_events = nullptr;     // outlives the Store; none: routers are told nothing
  SharedUse shared;
  DeviceUse device;
};

// What may change while the domain is served: these values of `from` become those of `to`. Whoever
// uses them reads them when it does.
void CopyTunable(const DomainOptions& from, DomainOptions* to);

// A session whose bytes did not match the checksums it had given.
struct RefutedWriter {
  SessionId session = 0;
  uint32_t uid = 0;
  uint64_t block_count = 0;  // of its blocks, as long as it is remembered
  uint64_t unix_s = 0;       // of the last one
  // Known if the session was still there at its first one.
  uint32_t pid = 0;
  std::string client_name;  // as it said
  std::string comm;         // what the system calls its process
};
inline constexpr size_t kRefutedWritersMax = 8;  // the last ones

struct StoreOptions {
  std::vector<DomainOptions> domains;
  uint32_t segments_total = 0;     // populated at any time over all domains: the DRAM cap
  uint32_t segments_spare = 1;     // populated ahead of need, per domain
  uint32_t lease_ttl_ms = 30'000;  // without a sign of life from any joiner
  SessionLimits sessions;
  uint32_t groups_max = 256;      // per domain
  uint32_t blocks_max = 1 << 22;  // per domain
  uint32_t leases_per_session_max = 4096;
  // Blocks over all leases of a session, and of a domain; beyond, prefixes truncate. A session has
  // its equal share of the domain's whatever the others hold.
  uint32_t lease_blocks_per_session_max = 1 << 21;
  uint64_t lease_blocks_max = 1 << 24;
  uint32_t pending_per_session_max = 1024;    // Acquires with blocks still coming, and Waits
  uint64_t fenced_bytes_max = 0;              // per domain; above it Reserve answers kNoSpace. > 0
  std::string eviction_policy = "lru";        // of DRAM; one of EvictionPolicyNames()
  std::string lower_eviction_policy = "lru";  // of the tiers below
  std::string admission_policy = "all";       // one of AdmissionPolicyNames(), for the tiers below
  // Of a block that is read part by part: no transfer is shorter, unless the block is.
  uint64_t part_read_bytes_min = 256 * kKiB;
  // Of a chain whose last block that was asked for had to be promoted: so many more are read ahead.
  // 0: none.
  uint32_t read_ahead_blocks = 0;
  uint32_t default_deadline_us = 1'000'000;
  uint32_t deadline_us_max = 600'000'000;
  GroupFiles* group_files = nullptr;      // none: groups are forgotten with the process
  AbsentPlaces* absent_places = nullptr;  // none: nothing is absent
  // Completes what is known of a session that is refuted for the first time; none: nothing more is.
  // Like the next, called from inside Store methods: may only look and take note.
  std::function<void(RefutedWriter* writer)> describe_writer;
  // A block was erased because its writer's checksums were wrong.
  std::function<void(uint32_t domain_index, const RefutedWriter& writer)> on_refuted;
  // A session that is connected was silent for its leases' time to live: so many are revoked.
  std::function<void(uint32_t domain_index, SessionId session, uint32_t lease_count)> on_silent;
};

// Likewise, but for its domains and what is per session (SessionRegister::SetLimits).
void CopyTunable(const StoreOptions& from, StoreOptions* to);

struct SessionOptions {
  SessionId id = 0;
  uint32_t domain_index = 0;
  uint32_t uid = 0;
  uint32_t pid = 0;  // 0: not known
};

}  // namespace terrace
