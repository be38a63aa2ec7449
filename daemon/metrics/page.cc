#include "daemon/metrics/page.h"

#include <nlohmann/json.hpp>

#include "daemon/log/json_text.h"
#include "daemon/telemetry/names.h"

namespace terrace {
namespace {

using nlohmann::json;

constexpr double kUsPerS = 1e6;
constexpr double kGibBytes = double{1 << 30};

uint32_t DepthOf(std::span<const PrefixRun> runs, uint32_t number) {
  uint32_t depth = 0;
  while (runs[number].parent != PrefixRun::kNone) {
    number = runs[number].parent;
    ++depth;
  }
  return depth;
}

json RunDocument(std::span<const PrefixRun> runs, uint32_t number,
                 std::span<const DomainStats::GroupStats> groups) {
  const PrefixRun& run = runs[number];
  const auto group = std::ranges::find(groups, run.group, &DomainStats::GroupStats::id);
  const bool is_known = group != groups.end();
  const uint64_t block_tokens = is_known ? group->block_tokens : 0;
  json tiers = json::array();
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    if ((run.tier_mask >> tier) & 1) tiers.push_back(std::string(kTierNames[tier]));
  }
  return {{"group", is_known ? group->name : ToHex(run.group)},
          {"key", ToHex(run.last)},
          {"depth", DepthOf(runs, number)},
          {"first_token", run.position * block_tokens},
          {"end_token", (uint64_t{run.position} + run.block_count) * block_tokens},
          {"block_count", run.block_count},
          {"byte_count", run.byte_count},
          {"hit_count", run.hit_count},
          {"lease_count", run.lease_count},
          {"tiers", std::move(tiers)},
          {"saved_s", run.saved_us / kUsPerS},
          {"saved_s_per_gib", run.saved_us_per_byte() * kGibBytes / kUsPerS},
          {"tree_block_count", run.tree_block_count},
          {"tree_saved_s", run.tree_saved_us / kUsPerS}};
}

}  // namespace

std::string StatusDocument(const std::vector<std::string>& domain_names, const PageSnapshot& page) {
  json minutes = json::array();
  for (const protocol::HitRateCounts& minute : page.minutes) {
    minutes.push_back({minute.blocks_asked, DomainStats::BlocksHit(minute)});
  }
  return "{\"domains\":" + JsonText(domain_names) + ",\"minutes\":" + JsonText(minutes) +
         ",\"status\":" +
         BriefStatsDocument(
             {.process = page.process, .domain = page.domain, .kv_events = page.kv_events}) +
         "}";
}

std::string PrefixesDocument(const PrefixRuns& survey, bool is_cut,
                             std::span<const DomainStats::GroupStats> groups) {
  json tree = json::array(), top = json::array();
  const std::span<const PrefixRun> runs = survey.runs();
  for (const uint32_t number : BestTree(runs, kTreeRunsShownMax)) {
    tree.push_back(RunDocument(runs, number, groups));
  }
  for (const uint32_t number : BestPerByte(runs, kTopPrefixesShownMax)) {
    top.push_back(RunDocument(runs, number, groups));
  }
  return JsonText({{"block_count", survey.block_count()},
                   {"run_count", runs.size()},
                   {"is_cut", is_cut},
                   {"tree", std::move(tree)},
                   {"top", std::move(top)}});
}

SavedUsByGroup SavedUsOf(std::span<const DomainStats::GroupStats> groups) {
  SavedUsByGroup saved_us;
  for (const DomainStats::GroupStats& group : groups) {
    saved_us[group.id] =
        static_cast<double>(group.block_tokens) * group.recompute_ns_per_token / 1e3;
  }
  return saved_us;
}

}  // namespace terrace
