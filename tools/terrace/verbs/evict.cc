// `terrace evict`: drops blocks by key, a whole group, or everything in the domain.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr size_t kKeysPerEvictMax = 4096;

class EvictVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("evict", "Drop blocks from every tier");
    const Argument keys = verb.AddOption("KEY", key_texts_, "Blocks to drop (32 hex digits each)");
    verb.AddOption("--group", group_, "With --all: every block of this group").Type("NAME");
    verb.AddFlag("--all", is_all_, "Every block of the domain, or of --group").Excludes(keys);
    verb.AddFlag("--subtree", has_subtree_, "And every block that continues a KEY").Needs(keys);
    verb.AddFlag("--dry-run", is_dry_run_, "Only say what would be dropped");
    verb.AddFlag("--yes", is_confirmed_, "Do not ask before --all");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (!is_all_ && key_texts_.empty()) return Usage("name blocks by KEY, or say --all");
    if (!is_all_ && !group_.empty())
      return Usage("--group needs --all: keys already name their group");
    std::vector<BlockKey> keys(key_texts_.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!ParseKeyArgument(key_texts_[i], &keys[i])) return kExitUsage;
    }
    if (is_all_ && !is_confirmed_ && !is_dry_run_) {
      if (ExitCode answer = Confirm(); answer != kExitOk) return answer;
    }
    std::unique_ptr<Client> client = ConnectOrExplain(address_);
    if (client == nullptr) return kExitFailed;
    if (!group_.empty() && !FindGroupRoots(*client, &keys)) return kExitFailed;
    const bool is_group_empty = !group_.empty() && keys.empty();
    if (!is_group_empty) {
      if (ExitCode outcome = Evict(*client, keys); outcome != kExitOk) return outcome;
    }
    Report();
    return kExitOk;
  }

 private:
  static ExitCode Usage(std::string_view message) {
    Fail(fmt::format("evict: {}. See `terrace evict --help`", message));
    return kExitUsage;
  }

  std::string Target() const {
    return group_.empty() ? "every block of the domain"
                          : fmt::format("every block of group {}", group_);
  }

  ExitCode Confirm() const {
    if (isatty(STDIN_FILENO) == 0) {
      return Usage(
          fmt::format("dropping {} needs a yes, and there is no terminal to ask on: add --yes, "
                      "or --dry-run to see what it would drop",
                      Target()));
    }
    fmt::print(stderr, "Drop {} on {}? [y/N] ", Target(), address_.path());
    std::fflush(stderr);
    char answer[16] = {};
    if (std::fgets(answer, sizeof(answer), stdin) != nullptr &&
        (answer[0] == 'y' || answer[0] == 'Y')) {
      return kExitOk;
    }
    return Fail("nothing was dropped");
  }

  // Keys are chained from the group's id, so those of one group name blocks of no other: evicting
  // the subtrees of its roots evicts the group and nothing else.
  bool FindGroupRoots(Client& client, std::vector<BlockKey>* roots) {
    std::optional<StatsView> stats = FetchStats(client, address_.deadline_us());
    if (!stats) return false;
    ListingQuery query{.deadline_us = address_.deadline_us()};
    query.group = FindGroup(*stats, group_);
    if (!query.group) return false;
    std::optional<Listing> listing = FetchListing(client, query);
    if (!listing) return false;
    std::unordered_set<BlockKey> resident;
    for (const auto& entry : listing->entries) resident.insert(entry.key);
    for (const auto& entry : listing->entries) {
      if (!resident.contains(entry.parent)) roots->push_back(entry.key);
    }
    return true;
  }

  ExitCode Evict(Client& client, const std::vector<BlockKey>& keys) {
    RequestOptions options;
    options.deadline_us = address_.deadline_us();
    options.flags = protocol::kKeysFlat;
    if (is_dry_run_) options.flags |= protocol::kEvictDryRun;
    if (has_subtree_ || is_all_) options.flags |= protocol::kEvictSubtree;
    size_t first = 0;
    do {
      const size_t count = std::min(keys.size() - first, kKeysPerEvictMax);
      auto reply = client.Evict(GroupRef{}, std::span(keys).subspan(first, count), options);
      if (!reply.ok()) {
        const std::string done =
            total_.block_count == 0 ? "" : fmt::format(" (after {} blocks)", total_.block_count);
        return FailRequest(client, "the daemon did not evict" + done, reply.status());
      }
      total_.block_count += reply->block_count;
      total_.byte_count += reply->byte_count;
      total_.skipped_count += reply->skipped_count;
      first += count;
    } while (first < keys.size());
    return kExitOk;
  }

  void Report() const {
    if (is_json_) {
      PrintJson({{"is_dry_run", is_dry_run_},
                 {"block_count", total_.block_count},
                 {"byte_count", total_.byte_count},
                 {"skipped_count", total_.skipped_count}});
      return;
    }
    std::string text = fmt::format("{} {} blocks, {}\n", is_dry_run_ ? "would evict" : "evicted",
                                   FormatCount(total_.block_count), FormatBytes(total_.byte_count));
    if (total_.skipped_count > 0) {
      text += fmt::format("{} blocks stay: leased, pinned, or continued by a block that stays{}\n",
                          FormatCount(total_.skipped_count),
                          has_subtree_ || is_all_ ? "" : " (--subtree drops those too)");
    }
    PrintText(text);
  }

  DaemonAddress address_;
  std::vector<std::string> key_texts_;
  std::string group_;
  protocol::EvictReply total_;
  bool is_all_ = false;
  bool has_subtree_ = false;
  bool is_dry_run_ = false;
  bool is_confirmed_ = false;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeEvictVerb() { return std::make_unique<EvictVerb>(); }

}  // namespace terrace::tools
