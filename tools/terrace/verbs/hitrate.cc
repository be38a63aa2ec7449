// `terrace hitrate`: how much of what clients asked for was there, why the rest was not, and what
// smaller or larger tiers would have hit.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/introspection_names.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;
using protocol::HitRateCounts;
using protocol::HitRateReply;
using protocol::HitRateRow;

constexpr std::array<std::string_view, protocol::kHitRateWindows> kWindowNames = {"1min", "10min",
                                                                                  "1h", "start"};
constexpr std::array<std::string_view, 4> kFactorNames = {"0.5x", "1x", "2x", "4x"};

uint64_t HitCount(const HitRateCounts& counts) {
  uint64_t sum = 0;
  for (const uint64_t hit : counts.blocks_hit) sum += hit;
  return sum;
}

// Of an estimate, which may be below 0 or above all.
double ShareIf(uint64_t hit_sum, uint64_t asked) {
  if (asked == 0) return 0;
  const double share =
      static_cast<double>(static_cast<int64_t>(hit_sum)) / static_cast<double>(asked);
  return std::clamp(share, 0.0, 1.0);
}

// What `hit` of the blocks saved: their share, since a prompt's blocks cost about the same.
uint64_t SavedUs(const HitRateCounts& counts, uint64_t hit) {
  const uint64_t all = HitCount(counts);
  return all == 0 ? 0
                  : static_cast<uint64_t>(static_cast<double>(counts.saved_us) *
                                          static_cast<double>(hit) / static_cast<double>(all));
}

json JsonOfHits(const HitRateCounts& counts) {
  const uint64_t hit_count = HitCount(counts);
  json document = {{"requests", counts.requests},
                   {"blocks_asked", counts.blocks_asked},
                   {"blocks_hit", hit_count},
                   {"hit_rate", ShareIf(hit_count, counts.blocks_asked)},
                   {"saved_ms", counts.saved_us / 1000}};
  for (size_t t = 0; t < kTierKindNames.size(); ++t) {
    const std::string tier(kTierKindNames[t]);
    document["blocks_hit_by_tier"][tier] = counts.blocks_hit[t];
    document["saved_ms_by_tier"][tier] = SavedUs(counts, counts.blocks_hit[t]) / 1000;
  }
  for (size_t c = 0; c < kMissCauseNames.size(); ++c) {
    document["blocks_missed"][std::string(kMissCauseNames[c])] = counts.blocks_missed[c];
  }
  for (size_t f = 0; f < kFactorNames.size(); ++f) {
    const std::string factor(kFactorNames[f]);
    document["hit_rate_if_dram"][factor] =
        ShareIf(counts.sampled_hit_if_dram[f], counts.sampled_asked);
    document["hit_rate_if_below"][factor] =
        ShareIf(counts.sampled_hit_if_below[f], counts.sampled_asked);
  }
  return document;
}

class HitRateVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        "hitrate", "What hits and misses are made of, and what other sizes would hit");
    verb.AddOption("--group", group_, "Only this group").Type("NAME");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr || !Fetch(*link)) return kExitFailed;
    if (!group_.empty()) {
      const auto wanted = FindGroup(*stats_, group_);
      if (!wanted) return kExitFailed;
      std::erase_if(rows_, [&](const HitRateRow& row) { return row.group != *wanted; });
    }
    if (is_json_) {
      PrintJson(Document());
    } else {
      PrintText(Render());
    }
    return kExitOk;
  }

 private:
  bool Fetch(AdminLink& link) {
    stats_ = FetchStats(link);
    if (!stats_) return false;
    protocol::HitRateRequest request;
    do {
      const auto body = link.Ask(protocol::kVerbHitRate, std::as_bytes(std::span(&request, 1)));
      if (!body.ok()) return Fail("the daemon did not answer HitRate: " + link.why()) == kExitOk;
      if (!AddRows(*body)) return Fail("the daemon's HitRate has another size") == kExitOk;
      request.first_row = head_.next_row;
    } while (head_.next_row > 0);
    return true;
  }

  bool AddRows(std::span<const std::byte> body) {
    if (body.size() < sizeof(head_)) return false;
    std::memcpy(&head_, body.data(), sizeof(head_));
    body = body.subspan(sizeof(head_));
    if (body.size() != size_t{head_.row_count} * sizeof(HitRateRow)) return false;
    const size_t before = rows_.size();
    if (head_.next_row != 0 && head_.next_row <= before) return false;
    rows_.resize(before + head_.row_count);
    if (!body.empty()) std::memcpy(&rows_[before], body.data(), body.size());
    return true;
  }

  std::string NameOf(const HitRateRow& row) const {
    if (row.group.is_zero()) return "all groups";
    const auto names = GroupNamesOf(*stats_);
    const auto found = names.find(row.group);
    return found == names.end() ? ToHex(row.group) : found->second;
  }

  json Document() const {
    json document = {{"domain", stats_->Text("domain.name")},
                     {"dram_bytes", head_.dram_bytes},
                     {"below_bytes", head_.below_bytes},
                     {"sample_weight", head_.sample_weight},
                     {"rows", json::array()}};
    for (const HitRateRow& row : rows_) {
      json entry = {{"group", row.group.is_zero() ? json() : json(NameOf(row))},
                    {"group_id", row.group.is_zero() ? json() : json(ToHex(row.group))}};
      for (size_t w = 0; w < kWindowNames.size(); ++w) {
        entry["windows"][std::string(kWindowNames[w])] = JsonOfHits(row.windows[w]);
      }
      document["rows"].push_back(std::move(entry));
    }
    return document;
  }

  std::string Render() const {
    std::string text = fmt::format("domain {}\n", stats_->Text("domain.name"));
    text += RenderRates();
    text += RenderMisses();
    text += RenderSizes();
    return text;
  }

  std::string RenderRates() const {
    using enum TextTable::Align;
    TextTable table({{"GROUP", kLeft},
                     {"WINDOW", kLeft},
                     {"REQUESTS", kRight},
                     {"BLOCKS", kRight},
                     {"HIT RATE", kRight},
                     {"DRAM", kRight},
                     {"BELOW", kRight},
                     {"PREFILL SAVED", kRight},
                     {"OF IT BELOW", kRight}});
    for (const HitRateRow& row : rows_) {
      for (size_t w = 0; w < kWindowNames.size(); ++w) {
        const HitRateCounts& counts = row.windows[w];
        const uint64_t hit = HitCount(counts);
        const uint64_t dram = counts.blocks_hit[1];
        table.AddRow({w == 0 ? NameOf(row) : "", std::string(kWindowNames[w]),
                      FormatCount(counts.requests), FormatCount(counts.blocks_asked),
                      FormatShare(hit, counts.blocks_asked), FormatShare(dram, counts.blocks_asked),
                      FormatShare(hit - dram, counts.blocks_asked),
                      FormatMilliseconds(counts.saved_us / 1000),
                      FormatMilliseconds(SavedUs(counts, hit - dram) / 1000)});
      }
    }
    return "\n" + table.Render();
  }

  // Of the last hour.
  std::string RenderMisses() const {
    using enum TextTable::Align;
    TextTable table({{"MISSED, 1h", kLeft}, {"BLOCKS", kRight}, {"WHY", kLeft}});
    for (const HitRateRow& row : rows_) {
      const HitRateCounts& counts = row.windows[kWindowNames.size() - 2];
      uint64_t missed = 0;
      std::string causes;
      for (size_t c = 0; c < kMissCauseNames.size(); ++c) missed += counts.blocks_missed[c];
      for (size_t c = 0; c < kMissCauseNames.size(); ++c) {
        if (counts.blocks_missed[c] == 0) continue;
        causes += fmt::format("{}{} {}", causes.empty() ? "" : ", ", kMissCauseNames[c],
                              FormatShare(counts.blocks_missed[c], missed));
      }
      table.AddRow({NameOf(row), FormatCount(missed), causes.empty() ? "-" : causes});
    }
    return "\n" + table.Render();
  }

  // Since the start: a sample needs its time.
  std::string RenderSizes() const {
    using enum TextTable::Align;
    TextTable table({{"HIT RATE IF", kLeft},
                     {"TIER", kLeft},
                     {"0.5x", kRight},
                     {"1x", kRight},
                     {"2x", kRight},
                     {"4x", kRight}});
    const auto add = [&](const std::string& name, const std::string& tier, const auto& hits,
                         uint64_t asked) {
      std::vector<std::string> cells = {name, tier};
      for (const uint64_t hit : hits) {
        cells.push_back(asked == 0 ? "-" : fmt::format("{:.1f} %", 100 * ShareIf(hit, asked)));
      }
      table.AddRow(cells);
    };
    for (const HitRateRow& row : rows_) {
      const HitRateCounts& counts = row.windows[kWindowNames.size() - 1];
      add(NameOf(row), "dram " + FormatBytes(head_.dram_bytes), counts.sampled_hit_if_dram,
          counts.sampled_asked);
      if (head_.below_bytes == 0) continue;
      const auto kind = static_cast<size_t>(head_.below_kind);
      add("",
          fmt::format("{} {}", kTierKindNames[std::min(kind, kTierKindNames.size() - 1)],
                      FormatBytes(head_.below_bytes)),
          counts.sampled_hit_if_below, counts.sampled_asked);
    }
    return "\n" + table.Render() +
           (head_.sample_weight == 1
                ? "LRU's, of all blocks\n"
                : fmt::format("LRU's, estimated from one block in {}: within two points\n",
                              head_.sample_weight));
  }

  DaemonAddress address_;
  std::string group_;
  bool is_json_ = false;
  std::optional<StatsView> stats_;
  HitRateReply head_;
  std::vector<HitRateRow> rows_;
};

}  // namespace

std::unique_ptr<Verb> MakeHitRateVerb() { return std::make_unique<HitRateVerb>(); }

}  // namespace terrace::tools
