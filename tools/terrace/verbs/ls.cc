// `terrace ls`: the blocks of a domain or group, one a line.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kLimitDefault = 50;

// The field each order looks at; the largest value comes first.
uint64_t SortValue(const protocol::ListEntry& entry, const std::string& order) {
  if (order == "age") return entry.age_ms;
  if (order == "size") return entry.byte_count;
  if (order == "hits") return entry.hit_count;
  return entry.idle_ms;
}

class ListVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("ls", "List blocks; a SIZE is of all copies together");
    verb.AddOption("--group", group_, "Only blocks of this group").Type("NAME");
    verb.AddOption("--limit", limit_, "Print at most so many blocks")
        .Type("N")
        .ShowDefault()
        .Between(uint64_t{1}, kListedBlocksMax);
    verb.AddOption("--sort", order_,
                   "idle, age, size or hits: the largest first (default: as they lie in the tree)")
        .Type("ORDER")
        .OneOf({"idle", "age", "size", "hits"});
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    std::unique_ptr<Client> client = ConnectOrExplain(address_);
    if (client == nullptr) return kExitFailed;
    std::optional<StatsView> stats = FetchStats(*client, address_.deadline_us());
    if (!stats) return kExitFailed;
    ListingQuery query{.deadline_us = address_.deadline_us()};
    if (!group_.empty()) {
      query.group = FindGroup(*stats, group_);
      if (!query.group) return kExitFailed;
    }
    std::optional<Listing> listing = FetchListing(*client, query);
    if (!listing) return kExitFailed;
    found_count_ = listing->entries.size();
    Sort(&listing->entries);
    if (is_json_) {
      RenderJson(*listing, GroupNamesOf(*stats));
    } else {
      RenderText(*listing, GroupNamesOf(*stats));
    }
    return kExitOk;
  }

 private:
  void Sort(std::vector<protocol::ListEntry>* entries) const {
    if (!order_.empty()) {
      std::stable_sort(entries->begin(), entries->end(),
                       [&](const protocol::ListEntry& a, const protocol::ListEntry& b) {
                         return SortValue(a, order_) > SortValue(b, order_);
                       });
    }
    entries->resize(std::min<size_t>(entries->size(), limit_));
  }

  void RenderJson(const Listing& listing, const GroupNames& names) const {
    nlohmann::json blocks = nlohmann::json::array();
    for (const auto& entry : listing.entries) blocks.push_back(ToJson(entry, names));
    PrintJson({{"blocks", blocks},
               {"found_count", found_count_},
               {"is_cut", listing.is_cut || listing.entries.size() < found_count_}});
  }

  void RenderText(const Listing& listing, const GroupNames& names) const {
    using enum TextTable::Align;
    if (found_count_ == 0) {
      PrintText(group_.empty() ? "no blocks in this domain\n"
                               : fmt::format("no blocks in group {}\n", group_));
      return;
    }
    TextTable table({{"KEY", kLeft},
                     {"GROUP", kLeft},
                     {"POS", kRight},
                     {"SIZE", kRight},
                     {"TIERS", kLeft},
                     {"IDLE", kRight},
                     {"AGE", kRight},
                     {"HITS", kRight},
                     {"LEASES", kRight},
                     {"FLAGS", kLeft}});
    for (const protocol::ListEntry& entry : listing.entries) {
      table.AddRow({ToHex(entry.key), GroupLabel(entry.group, names),
                    std::to_string(entry.position), FormatBytes(entry.byte_count),
                    FormatTiers(entry.tier_mask), FormatMilliseconds(entry.idle_ms),
                    FormatMilliseconds(entry.age_ms), FormatCount(entry.hit_count),
                    std::to_string(entry.lease_count), FormatFlags(entry)});
    }
    PrintText(table.Render());
    if (listing.entries.size() < found_count_) {
      PrintText(fmt::format("{} of {}{} blocks; --limit N shows more\n",
                            FormatCount(listing.entries.size()), listing.is_cut ? "more than " : "",
                            FormatCount(found_count_)));
    }
  }

  DaemonAddress address_;
  std::string group_;
  std::string order_;
  uint64_t limit_ = kLimitDefault;
  uint64_t found_count_ = 0;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeListVerb() { return std::make_unique<ListVerb>(); }

}  // namespace terrace::tools
