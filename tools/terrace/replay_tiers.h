// The second tier of `terrace replay`: what is hit and written when DRAM has a slower tier below,
// by eviction policy and admission policy.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/replay/dense_trace.h"

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
};

struct TierResult {
  TierCase what;
  uint64_t dram_hit_count = 0;
  uint64_t below_hit_count = 0;
  uint64_t written_count = 0;

  uint64_t hit_count() const { return dram_hit_count + below_hit_count; }
};

// `show` is told from time to time how many requests are done. REQUIRES: names that exist.
TierResult ReplayTiers(const DenseTrace& trace, const TierCase& what,
                       const std::function<void(uint64_t)>& show);

std::string RenderTiers(const DenseTrace& trace, const std::vector<TierResult>& results);
nlohmann::json TiersToJson(const DenseTrace& trace, const std::vector<TierResult>& results);

}  // namespace terrace::tools
