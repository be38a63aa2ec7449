// What one Stats answer says to `terrace top`, and how fast things went between two of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/protocol.h"
#include "tools/terrace/cli/stats_view.h"

namespace terrace::tools {

// A figure that the daemon may not tell.
using Figure = std::optional<uint64_t>;
// A second; absent where it cannot be said.
using Rate = std::optional<double>;

struct TierSample {
  std::string kind;  // as protocol::TierKind: hbm, dram, nvme, redis
  Figure used_bytes, capacity_bytes;
  Figure blocks_hit;
  // As the tier counts them; clients read and write DRAM themselves, which nobody counts.
  Figure read_bytes, written_bytes;
  std::string trouble;  // "off", "away"; empty: none
};

struct GroupSample {
  std::string id, name;
  Figure block_count, block_bytes;
  Figure blocks_asked, blocks_hit;
};

struct Sample {
  std::string domain, version, pid, boot_id;
  std::string health;  // "ok", or a sentence for each trouble
  uint64_t uptime_ms = 0;
  Figure sessions, leases, blocks, leased_blocks, reserved_blocks;
  Figure requests, blocks_asked, blocks_hit, blocks_stored, blocks_evicted, blocks_expired;
  std::vector<TierSample> tiers;  // those that there are, quickest first
  std::vector<GroupSample> groups;
};
Sample SampleOf(const StatsView& stats);

struct TierRates {
  Rate hits, read_bytes, written_bytes;
  Rate share;  // of blocks asked for: 0 to 1
};
struct GroupRates {
  Rate asked, hit;
  Rate share;
};
struct Rates {
  uint64_t elapsed_ms = 0;  // of the daemon's own clock; 0: nothing can be said
  bool is_restarted = false;
  Rate requests, asked, hit, stored, evicted, expired;
  Rate share, miss_share;
  std::vector<TierRates> tiers;    // as in the later sample
  std::vector<GroupRates> groups;  // the same
};
// A counter that went backwards, as all do when a daemon starts anew, has no rate.
Rates RatesBetween(const Sample& before, const Sample& after);

}  // namespace terrace::tools
