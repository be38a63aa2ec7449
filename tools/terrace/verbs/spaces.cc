// `terrace spaces`: the SpaceGroups of a domain: what they hold where, how they are used, and what
// their Spaces are.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/introspection_names.h"
#include "tools/terrace/cli/space_text.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr size_t kDram = static_cast<size_t>(protocol::TierKind::kDram);
constexpr uint32_t kSharedBit = 1u << static_cast<uint32_t>(protocol::TierKind::kRedis);

// What a walk over all blocks saw of a group. A block that is in two tiers is counted in both.
struct GroupUse {
  uint64_t block_count = 0;
  std::array<uint64_t, protocol::kTierKindCount> bytes_by_tier{};
  uint64_t pinned_count = 0;
  uint64_t leased_count = 0;
  std::optional<uint64_t> idle_ms;  // of the block used last

  void Add(const protocol::ListEntry& entry) {
    ++block_count;
    // Of all copies of this host together, which are alike.
    const uint32_t here = entry.tier_mask & ~kSharedBit;
    const auto copy_count = static_cast<uint64_t>(std::popcount(here));
    for (size_t tier = 0; tier < bytes_by_tier.size(); ++tier) {
      if ((here >> tier & 1) != 0) bytes_by_tier[tier] += entry.byte_count / copy_count;
    }
    if ((entry.flags & protocol::kQueriedPinned) != 0) ++pinned_count;
    if (entry.lease_count > 0) ++leased_count;
    idle_ms = std::min(idle_ms.value_or(entry.idle_ms), entry.idle_ms);
  }
};

struct GroupRow {
  StatsView stats;
  GroupUse use;
  std::optional<std::vector<SpaceMember>> members;
};

class SpacesVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb =
        parent.AddVerb("spaces", "SpaceGroups: their Spaces, bytes by tier, last use, hit rate");
    verb.AddOption("--group", group_, "Only this group").Type("NAME");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    const auto stats = FetchStats(*link);
    if (!stats || (!group_.empty() && !FindGroup(*stats, group_))) return kExitFailed;
    if (!Gather(*link, *stats)) return kExitFailed;
    if (is_json_) {
      PrintJson(Document(*stats));
    } else {
      PrintText(rows_.empty() ? "no SpaceGroup in this domain: no engine has opened one yet\n"
                              : RenderTable() + RenderSpaces());
    }
    return kExitOk;
  }

 private:
  bool Gather(AdminLink& link, const StatsView& stats) {
    std::map<GroupId, GroupUse> uses;
    const bool is_listed = ListBlocks(link, {}, [&](std::span<const protocol::ListEntry> entries) {
      for (const protocol::ListEntry& entry : entries) uses[entry.group].Add(entry);
      return true;
    });
    if (!is_listed) return false;
    for (const StatsView& group : stats.Each("groups")) {
      if (!group_.empty() && group.Text("name") != group_) continue;
      GroupRow& row = rows_.emplace_back(GroupRow{.stats = group, .use = {}, .members = {}});
      const Result<GroupId> id = ParseId<GroupIdTag>(group.Text("id"));
      if (!id.ok()) continue;
      row.use = uses[*id];
      // A key that nobody has: all that is asked for is what the group is.
      const BlockKey no_key;
      auto explained = AskExplain(
          link, {.group = *id, .keys = std::span(&no_key, 1), .flags = protocol::kExplainMembers});
      if (!explained) return false;
      row.members = std::move(explained->members);
    }
    return true;
  }

  // Of those only that hold anything; DRAM always.
  std::vector<size_t> TiersShown() const {
    std::vector<size_t> tiers;
    for (size_t tier = 0; tier < kTierKindNames.size(); ++tier) {
      const bool is_used = std::any_of(rows_.begin(), rows_.end(), [&](const GroupRow& row) {
        return row.use.bytes_by_tier[tier] > 0;
      });
      if (is_used || tier == kDram) tiers.push_back(tier);
    }
    return tiers;
  }

  std::string RenderTable() const {
    using enum TextTable::Align;
    const std::vector<size_t> tiers = TiersShown();
    std::vector<TextTable::Column> columns = {{"GROUP", kLeft}, {"BLOCKS", kRight}};
    for (const size_t tier : tiers) {
      std::string title(kTierKindNames[tier]);
      for (char& letter : title) letter = static_cast<char>(letter - 'a' + 'A');
      columns.push_back({title, kRight});
    }
    for (const char* title : {"LEASED", "PINNED", "LAST USE", "HIT RATE"}) {
      columns.push_back({title, kRight});
    }
    TextTable table(columns);
    for (const GroupRow& row : rows_) {
      std::vector<std::string> cells = {row.stats.Text("name"), FormatCount(row.use.block_count)};
      for (const size_t tier : tiers) cells.push_back(FormatBytes(row.use.bytes_by_tier[tier]));
      cells.push_back(FormatCount(row.use.leased_count));
      cells.push_back(FormatCount(row.use.pinned_count));
      cells.push_back(row.use.idle_ms ? FormatMilliseconds(*row.use.idle_ms) + " ago" : "-");
      cells.push_back(FormatShare(row.stats.Count("acquire_blocks_hit").value_or(0),
                                  row.stats.Count("acquire_blocks_asked").value_or(0)));
      table.AddRow(std::move(cells));
    }
    return table.Render();
  }

  std::string RenderSpaces() const {
    std::string text;
    for (const GroupRow& row : rows_) {
      text += fmt::format(
          "\n{} ({}): {} member{}, blocks of {} tokens and {}\n  {}\n", row.stats.Text("name"),
          row.stats.Text("id"), row.stats.Count("member_count").value_or(0),
          row.stats.Count("member_count") == 1 ? "" : "s",
          row.stats.Count("block_tokens").value_or(0),
          FormatBytes(row.stats.Count("block_bytes").value_or(0)),
          row.members ? DescribeSpaces(*row.members)
                      : "the daemon is older than this command and does not tell its Spaces");
    }
    return text;
  }

  json Document(const StatsView& stats) const {
    json document = {{"domain", stats.Text("domain.name")}, {"groups", json::array()}};
    for (const GroupRow& row : rows_) {
      json group = row.stats.document();
      group["block_count"] = row.use.block_count;
      group["leased_count"] = row.use.leased_count;
      group["pinned_count"] = row.use.pinned_count;
      group["idle_ms"] = row.use.idle_ms ? json(*row.use.idle_ms) : json();
      for (size_t tier = 0; tier < kTierKindNames.size(); ++tier) {
        group["bytes_by_tier"][std::string(kTierKindNames[tier])] = row.use.bytes_by_tier[tier];
      }
      group["members"] = row.members ? ToJson(*row.members) : json();
      document["groups"].push_back(std::move(group));
    }
    return document;
  }

  DaemonAddress address_;
  std::string group_;
  bool is_json_ = false;
  std::vector<GroupRow> rows_;
};

}  // namespace

std::unique_ptr<Verb> MakeSpacesVerb() { return std::make_unique<SpacesVerb>(); }

}  // namespace terrace::tools
