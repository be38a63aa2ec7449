#include "tools/terrace/replay_tiers.h"

#include <fmt/format.h>

#include "daemon/admission.h"
#include "daemon/eviction/policies.h"
#include "tools/replay/two_tier_cache.h"
#include "tools/terrace/text_table.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kShowStepMask = 0xFF;  // requests between two calls of `show`

double PercentOf(uint64_t part_count, uint64_t whole_count) {
  return whole_count == 0
             ? 0
             : 100.0 * static_cast<double>(part_count) / static_cast<double>(whole_count);
}

std::string WritesPerHit(const TierResult& result) {
  if (result.below_hit_count == 0) return "-";
  return fmt::format("{:.2f}", static_cast<double>(result.written_count) /
                                   static_cast<double>(result.below_hit_count));
}

}  // namespace

TierResult ReplayTiers(const DenseTrace& trace, const TierCase& what,
                       const std::function<void(uint64_t)>& show) {
  const bool is_below_used = what.admission != "none";
  const auto dram = MakeEvictionPolicy(what.policy, what.dram_blocks);
  const auto below = MakeEvictionPolicy(what.below_policy, what.below_blocks);
  const auto admission = MakeAdmissionPolicy(
      is_below_used ? what.admission : "all",
      {.capacity_blocks = what.below_blocks, .write_bytes_per_day = what.writes_per_day});
  TwoTierCache cache(
      trace,
      {.dram_blocks = what.dram_blocks, .lower_blocks = is_below_used ? what.below_blocks : 0},
      {.dram = *dram, .lower = *below, .admission = *admission});
  for (size_t r = 0; r < trace.request_count(); ++r) {
    if ((r & kShowStepMask) == 0) show(r);
    cache.Serve(r);
  }
  return {.what = what,
          .dram_hit_count = cache.dram_hit_count(),
          .below_hit_count = cache.lower_hit_count(),
          .written_count = cache.written_count()};
}

std::string RenderTiers(const DenseTrace& trace, const std::vector<TierResult>& results) {
  TextTable table({{.title = "policy"},
                   {.title = "admission"},
                   {"dram", TextTable::Align::kRight},
                   {"below", TextTable::Align::kRight},
                   {"hit %", TextTable::Align::kRight},
                   {"dram hit %", TextTable::Align::kRight},
                   {"below hit %", TextTable::Align::kRight},
                   {"blocks written", TextTable::Align::kRight},
                   {"writes per hit below", TextTable::Align::kRight}});
  for (const TierResult& result : results) {
    const auto percent = [&](uint64_t count) {
      return fmt::format("{:.2f}", PercentOf(count, trace.asked_count()));
    };
    table.AddRow({result.what.policy, result.what.admission, result.what.dram_text,
                  result.what.below_text, percent(result.hit_count()),
                  percent(result.dram_hit_count), percent(result.below_hit_count),
                  FormatCount(result.written_count), WritesPerHit(result)});
  }
  return "two tiers: DRAM over a slower one, written on eviction\n" + table.Render();
}

nlohmann::json TiersToJson(const DenseTrace& trace, const std::vector<TierResult>& results) {
  nlohmann::json rows = nlohmann::json::array();
  for (const TierResult& result : results) {
    rows.push_back({{"policy", result.what.policy},
                    {"admission", result.what.admission},
                    {"dram_blocks", result.what.dram_blocks},
                    {"below_blocks", result.what.below_blocks},
                    {"hit_percent", PercentOf(result.hit_count(), trace.asked_count())},
                    {"dram_hit_blocks", result.dram_hit_count},
                    {"below_hit_blocks", result.below_hit_count},
                    {"written_blocks", result.written_count}});
  }
  return rows;
}

}  // namespace terrace::tools
