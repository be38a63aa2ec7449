// The tiers of `terrace replay`: what is hit and written when DRAM has a slower tier below, by
// eviction policy and admission policy, and when several such hosts share a third.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/replay/dense_trace.h"
#include "tools/replay/shared_cache.h"

namespace terrace::tools {

struct TierCase {
  std::string policy;  // of both tiers
  std::string below_policy;
  std::string admission;  // "none": nothing is written
  std::string dram_text;  // as given
  std::string below_text;
  uint32_t dram_blocks = 0;
  uint32_t below_blocks = 0;
  uint64_t writes_per_day = 0;  // blocks; > 0
  std::string shared_text;
  uint32_t shared_blocks = 0;  // 0: there is no shared tier
  SharedCache::Admission shared_admission = SharedCache::Admission::kAll;
  uint32_t host_count = 1;  // > 0; each has both tiers
};

struct TierResult {
  TierCase what;
  uint64_t dram_hit_count = 0;
  uint64_t below_hit_count = 0;
  uint64_t written_count = 0;  // below
  uint64_t shared_hit_count = 0;
  uint64_t shared_written_count = 0;

  uint64_t hit_count() const { return dram_hit_count + below_hit_count + shared_hit_count; }
};

// `show` is told from time to time how many requests are done. Requests go to hosts by session, or
// in turns where the trace names none. REQUIRES: names that exist.
TierResult ReplayTiers(const DenseTrace& trace, const TierCase& what,
                       const std::function<void(uint64_t)>& show);

std::string RenderTiers(const DenseTrace& trace, const std::vector<TierResult>& results);
nlohmann::json TiersToJson(const DenseTrace& trace, const std::vector<TierResult>& results);

}  // namespace terrace::tools
