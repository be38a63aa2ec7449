#include "tools/terrace/verbs/replay_tiers.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "daemon/policy/admission.h"
#include "tools/replay/eviction/compared_policies.h"
#include "tools/replay/two_tier_cache.h"
#include "tools/terrace/cli/text_table.h"

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

// One host's tiers and what decides for them.
struct Host {
  Host(const DenseTrace& trace, const TierCase& what, SharedCache* shared)
      : dram(MakeComparedPolicy(what.policy, what.dram_blocks)),
        below(MakeComparedPolicy(what.below_policy, what.below_blocks)),
        admission(MakeAdmissionPolicy(
            what.admission == "none" ? "all" : what.admission,
            {.capacity_blocks = what.below_blocks, .write_bytes_per_day = what.writes_per_day})),
        cache(trace,
              {.dram_blocks = what.dram_blocks,
               .lower_blocks = what.admission == "none" ? 0 : what.below_blocks},
              {.dram = *dram, .lower = *below, .admission = *admission, .shared = shared}) {}

  const std::unique_ptr<EvictionPolicy> dram;
  const std::unique_ptr<EvictionPolicy> below;
  const std::unique_ptr<AdmissionPolicy> admission;
  TwoTierCache cache;
};

}  // namespace

TierResult ReplayTiers(const DenseTrace& trace, const TierCase& what,
                       const std::function<void(uint64_t)>& show) {
  std::optional<SharedCache> shared;
  if (what.shared_blocks > 0) shared.emplace(what.shared_blocks, what.shared_admission);
  std::vector<std::unique_ptr<Host>> hosts;
  for (uint32_t h = 0; h < what.host_count; ++h) {
    hosts.push_back(std::make_unique<Host>(trace, what, shared ? &*shared : nullptr));
  }
  for (size_t r = 0; r < trace.request_count(); ++r) {
    if ((r & kShowStepMask) == 0) show(r);
    const uint64_t session_hash = trace.request(r).session_hash;
    hosts[(session_hash != 0 ? session_hash : r) % what.host_count]->cache.Serve(r);
  }
  TierResult result{.what = what, .shared_written_count = shared ? shared->written_count() : 0};
  for (const auto& host : hosts) {
    result.dram_hit_count += host->cache.dram_hit_count();
    result.below_hit_count += host->cache.lower_hit_count();
    result.shared_hit_count += host->cache.shared_hit_count();
    result.written_count += host->cache.written_count();
  }
  return result;
}

std::string RenderTiers(const DenseTrace& trace, const std::vector<TierResult>& results) {
  const bool is_shared = !results.empty() && results.front().what.shared_blocks > 0;
  const auto column = [](const char* title) {
    return TextTable::Column{title, TextTable::Align::kRight};
  };
  std::vector<TextTable::Column> columns = {{.title = "policy"}, {.title = "admission"}};
  for (const char* title : {"dram", "below"}) columns.push_back(column(title));
  if (is_shared) columns.push_back(column("shared"));
  for (const char* title : {"hit %", "dram hit %", "below hit %"}) columns.push_back(column(title));
  if (is_shared) columns.push_back(column("shared hit %"));
  for (const char* title : {"blocks written", "writes per hit below"}) {
    columns.push_back(column(title));
  }
  if (is_shared) columns.push_back(column("written to shared"));
  TextTable table(columns);
  for (const TierResult& result : results) {
    const auto percent = [&](uint64_t count) {
      return fmt::format("{:.2f}", PercentOf(count, trace.asked_count()));
    };
    std::vector<std::string> cells = {result.what.policy, result.what.admission,
                                      result.what.dram_text, result.what.below_text};
    if (is_shared) cells.push_back(result.what.shared_text);
    cells.insert(cells.end(), {percent(result.hit_count()), percent(result.dram_hit_count),
                               percent(result.below_hit_count)});
    if (is_shared) cells.push_back(percent(result.shared_hit_count));
    cells.insert(cells.end(), {FormatCount(result.written_count), WritesPerHit(result)});
    if (is_shared) cells.push_back(FormatCount(result.shared_written_count));
    table.AddRow(std::move(cells));
  }
  const uint32_t host_count = results.empty() ? 1 : results.front().what.host_count;
  return fmt::format("{} tiers{}: DRAM over a slower one that holds copies of what is stored{}\n",
                     is_shared ? "three" : "two",
                     host_count > 1 ? fmt::format(" of {} hosts", host_count) : "",
                     is_shared ? ", over a shared one, written when stored" : "") +
         table.Render();
}

nlohmann::json TiersToJson(const DenseTrace& trace, const std::vector<TierResult>& results) {
  nlohmann::json rows = nlohmann::json::array();
  for (const TierResult& result : results) {
    rows.push_back({{"policy", result.what.policy},
                    {"admission", result.what.admission},
                    {"hosts", result.what.host_count},
                    {"dram_blocks", result.what.dram_blocks},
                    {"below_blocks", result.what.below_blocks},
                    {"shared_blocks", result.what.shared_blocks},
                    {"hit_percent", PercentOf(result.hit_count(), trace.asked_count())},
                    {"dram_hit_blocks", result.dram_hit_count},
                    {"below_hit_blocks", result.below_hit_count},
                    {"shared_hit_blocks", result.shared_hit_count},
                    {"written_blocks", result.written_count},
                    {"shared_written_blocks", result.shared_written_count}});
  }
  return rows;
}

}  // namespace terrace::tools
