// `terrace tree`: the radix tree of a domain, a group or one block's descendants.
#include <nlohmann/json.hpp>

#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/block_tree.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kDepthDefault = 8;
constexpr uint32_t kDepthMax = 1 << 16;

class TreeVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        "tree", "Draw the prefix tree, a chain of blocks without branches on one line");
    verb.AddOption("KEY", key_, "Only this block and what continues it (32 hex digits)");
    verb.AddOption("--group", group_, "Only blocks of this group").Type("NAME");
    verb.AddOption("--depth", depth_max_, "Draw so many branchings deep")
        .Type("N")
        .ShowDefault()
        .Between(uint32_t{1}, kDepthMax);
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    ListingQuery query{.deadline_us = address_.deadline_us()};
    if (!key_.empty() && !ParseKeyArgument(key_, &query.root)) return kExitUsage;
    std::unique_ptr<Client> client = ConnectOrExplain(address_);
    if (client == nullptr) return kExitFailed;
    std::optional<StatsView> stats = FetchStats(*client, address_.deadline_us());
    if (!stats) return kExitFailed;
    if (!group_.empty()) {
      query.group = FindGroup(*stats, group_);
      if (!query.group) return kExitFailed;
    }
    std::optional<Listing> listing = FetchListing(*client, query);
    if (!listing) return kExitFailed;
    if (!key_.empty() && listing->entries.empty()) {
      return Fail(
          fmt::format("block {} is not in this domain's cache. `terrace ls` lists what is", key_));
    }
    const BlockTree tree(listing->entries);
    if (is_json_) {
      PrintJson({{"runs", tree.ToJson(depth_max_, GroupNamesOf(*stats))},
                 {"block_count", listing->entries.size()},
                 {"is_cut", listing->is_cut}});
    } else if (listing->entries.empty()) {
      PrintText("no blocks\n");
    } else {
      PrintText(tree.Render(depth_max_, GroupNamesOf(*stats)));
      if (listing->is_cut) PrintText(fmt::format("cut after {} blocks\n", kListedBlocksMax));
    }
    return kExitOk;
  }

 private:
  DaemonAddress address_;
  std::string key_;
  std::string group_;
  uint32_t depth_max_ = kDepthDefault;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeTreeVerb() { return std::make_unique<TreeVerb>(); }

}  // namespace terrace::tools
