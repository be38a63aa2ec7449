// `terrace evict`: drops blocks by key, a whole group, everything in the domain, or what filters
// name.
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/content/age_text.h"
#include "tools/terrace/content/confirm.h"
#include "tools/terrace/content/operator_requests.h"

namespace terrace::tools {
namespace {

constexpr size_t kKeysPerEvictMax = 4096;
constexpr char kEvictDescription[] =
    "Drop blocks\n\n"
    "By KEY, --group with --all, or --all they leave every tier, Redis too. With --older-than or\n"
    "--tier blocks of the domain, or of --group, leave as far as the filters say: without --tier\n"
    "every tier of this host; with it that tier alone, and a block that has no other copy is "
    "gone.\n"
    "What is leased, pinned, or continued by a block that stays is skipped; if it was named by "
    "KEY,\n"
    "the exit status is 1. Asks on a terminal, or takes --yes. `terrace log` tells who evicted "
    "what.";

class EvictVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("evict", kEvictDescription);
    const Argument keys = verb.AddOption("KEY", key_texts_, "Blocks to drop (32 hex digits each)");
    verb.AddOption("--group,--space", group_, "With --all or a filter: only blocks of this group")
        .Type("NAME");
    verb.AddFlag("--all", is_all_, "Every block of the domain, or of --group").Excludes(keys);
    Argument subtree =
        verb.AddFlag("--subtree", has_subtree_, "And every block that continues a KEY");
    subtree.Needs(keys);
    verb.AddFlag("--orphans", has_orphans_,
                 "With --subtree: of a KEY that is not here, whatever has lost its parent and may\n"
                 "continue it, of every group")
        .Needs(subtree);
    verb.AddOption("--older-than", age_text_, "Only what was last used so long ago, such as 2h")
        .Type("TIME")
        .Excludes(keys);
    verb.AddOption("--tier", tier_, "Only the copies in this tier: the blocks stay in the others")
        .Type("TIER")
        .OneOf({"hbm", "dram", "nvme", "redis"})
        .Excludes(keys);
    verb.AddFlag("--everywhere", is_everywhere_,
                 "With a filter: what Redis has of these blocks goes, too (without one it does)");
    verb.AddOption("--domain", domain_, "Refuse unless the socket is of this domain").Type("NAME");
    verb.AddFlag("--by-key", is_by_key_,
                 "With --all: where blocks are encrypted, destroy the keys of their groups first, "
                 "so\n"
                 "that nothing of them can be read on a drive any more");
    verb.AddFlag("--dry-run", is_dry_run_, "Only say what would be dropped");
    verb.AddFlag("--yes", is_confirmed_, "Do not ask");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const bool is_filtered = !age_text_.empty() || !tier_.empty();
    if (!is_all_ && !is_filtered && key_texts_.empty()) {
      return Usage("name blocks by KEY, say --all, or filter by --older-than or --tier");
    }
    if (!is_all_ && !is_filtered && !group_.empty()) {
      return Usage("--group needs --all or a filter: keys already name their group");
    }
    if (is_everywhere_ && !is_filtered) {
      return Usage("--everywhere is for filters: without one Redis is always emptied, too");
    }
    if (is_by_key_ && (!is_all_ || is_filtered || is_dry_run_)) {
      return Usage("--by-key is for --all, of the domain or of --group: a key is its group's");
    }
    if (!age_text_.empty() && !ParseAge(age_text_, &filter_.idle_ms_min)) {
      return Usage(WhyNoAge("--older-than", age_text_));
    }
    // 0 names no age: everything, and what Redis has of it.
    if (!age_text_.empty()) filter_.idle_ms_min = std::max(filter_.idle_ms_min, uint64_t{1});
    std::unordered_set<BlockKey> named;
    for (const std::string& text : key_texts_) {
      BlockKey key;
      if (!ParseKeyArgument(text, &key)) return kExitUsage;
      // Who names a key twice means one block.
      if (named.insert(key).second) keys_.push_back(key);
    }
    if (!is_confirmed_ && !is_dry_run_) {
      const ExitCode answer = Confirm({.verb = "evict",
                                       .what = Target(),
                                       .where = address_.path(),
                                       .remedy = "--dry-run to see what it would drop"});
      if (answer != kExitOk) return answer;
    }
    if (!domain_.empty() && !IsRightDomain()) return kExitFailed;
    if (is_filtered || is_by_key_ || !group_.empty()) return EvictFiltered();
    std::unique_ptr<Client> client = ConnectOrExplain(address_);
    if (client == nullptr) return kExitFailed;
    if (has_subtree_ && !has_orphans_) {
      if (ExitCode outcome = SetAbsentAside(*client); outcome != kExitOk) return outcome;
    }
    const bool is_below = has_subtree_ || is_all_;
    ExitCode outcome =
        keys_.empty() && !absent_.empty() ? kExitOk : Evict(*client, keys_, is_below);
    if (outcome == kExitOk && !absent_.empty()) outcome = Evict(*client, absent_, false);
    if (outcome != kExitOk) return outcome;
    LookAtOwed([&] { return FetchStats(*client, address_.deadline_us()); });
    Report();
    // Less than was named: whoever runs this as part of a script hears of it.
    return !key_texts_.empty() && total_.skipped_count > 0 ? kExitFailed : kExitOk;
  }

 private:
  static ExitCode Usage(std::string_view message) {
    Fail(fmt::format("evict: {}. See `terrace evict --help`", message));
    return kExitUsage;
  }

  std::string Target() const {
    if (!key_texts_.empty()) {
      return fmt::format("{}{}", FormatCount(keys_.size(), "block"),
                         has_subtree_ ? " and all that continue them" : "");
    }
    std::string target = group_.empty() ? "every block of the domain"
                                        : fmt::format("every block of group {}", group_);
    if (!age_text_.empty()) target += fmt::format(" that was not used for {}", age_text_);
    if (!tier_.empty()) target += fmt::format(", of its tier {} alone", tier_);
    return target;
  }

  bool IsRightDomain() const {
    const auto link = AdminLink::Open(address_);
    return link != nullptr && IsDomain(*link, domain_);
  }

  // If the domain has not the tier that was named: which there are, and the key that would make it.
  std::optional<std::string> WhyNoTier(AdminLink& link) const {
    const auto stats = tier_.empty() ? std::nullopt : FetchStats(link);
    if (!stats || tier_ == "dram") return std::nullopt;
    std::string there = "dram";
    for (const StatsView& tier : stats->Each("lower_tiers")) there += ", " + tier.Text("kind");
    if (stats->Count("redis.connections")) there += ", redis";
    if ((there + ",").find(", " + tier_ + ",") != std::string::npos) return std::nullopt;
    const std::string_view key = tier_ == "hbm"    ? "hbm.capacity_bytes"
                                 : tier_ == "nvme" ? "nvme.paths"
                                                   : "redis.endpoints";
    return fmt::format(
        "domain {} has no {} tier; it has {}. Name one of these, or set {} and restart the daemon",
        link.domain_name(), tier_, there, key);
  }

  ExitCode EvictFiltered() {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    if (!group_.empty()) {
      const auto stats = FetchStats(*link);
      if (!stats) return kExitFailed;
      const auto group = FindGroup(*stats, group_);
      if (!group) return kExitFailed;
      filter_.group = *group;
    }
    if (!tier_.empty()) filter_.tier = static_cast<uint8_t>(TierNamed(tier_));
    if (is_dry_run_) filter_.flags |= protocol::kEvictWhereDryRun;
    // With neither a tier nor an age it means the groups' keys: what Redis has goes without it.
    if (is_everywhere_ || is_by_key_) filter_.flags |= protocol::kEvictWhereShared;
    std::string why;
    const auto reply = AskEvictWhere(*link, filter_, &why);
    if (!reply) return Fail("evict: " + WhyNoTier(*link).value_or(why));
    total_ = *reply;
    LookAtOwed([&] { return FetchStats(*link); });
    Report();
    return kExitOk;
  }

  // Of a block that is not here nobody knows what continues it, so the daemon takes whatever has
  // lost its parent: a key that is mistyped is to take nothing. Redis hears of it all the same.
  ExitCode SetAbsentAside(Client& client) {
    RequestOptions options;
    options.deadline_us = address_.deadline_us();
    options.flags = protocol::kKeysFlat | protocol::kEvictDryRun;
    std::vector<BlockKey> here;
    for (const BlockKey& key : keys_) {
      const auto reply = client.Evict(GroupRef{}, std::span(&key, 1), options);
      if (!reply.ok()) return FailRequest(client, "evict", reply.status());
      (reply->block_count + reply->skipped_count > 0 ? here : absent_).push_back(key);
    }
    keys_ = std::move(here);
    return kExitOk;
  }

  ExitCode Evict(Client& client, const std::vector<BlockKey>& keys, bool is_below) {
    RequestOptions options;
    options.deadline_us = address_.deadline_us();
    options.flags = protocol::kKeysFlat;
    if (is_dry_run_) options.flags |= protocol::kEvictDryRun;
    if (is_below) options.flags |= protocol::kEvictSubtree;
    // A chain's keys come head first, and a block that has a child stays: the last go first.
    size_t left_count = keys.size();
    do {
      const size_t count = std::min(left_count, kKeysPerEvictMax);
      left_count -= count;
      auto reply = client.Evict(GroupRef{}, std::span(keys).subspan(left_count, count), options);
      if (!reply.ok()) {
        const std::string done =
            total_.block_count == 0
                ? ""
                : fmt::format(" (after {})", FormatCount(total_.block_count, "block"));
        return FailRequest(client, "evict" + done, reply.status());
      }
      total_.block_count += reply->block_count;
      total_.byte_count += reply->byte_count;
      total_.skipped_count += reply->skipped_count;
    } while (left_count > 0);
    return kExitOk;
  }

  // Of keys that were named; what continues them may be more than that.
  uint64_t NotHereCount() const {
    if (has_subtree_) return absent_.size();
    const uint64_t found_count = total_.block_count + total_.skipped_count;
    return keys_.size() > found_count ? keys_.size() - found_count : 0;
  }

  // A server that answers is told within milliseconds of what was erased: so long it is awaited.
  template <typename Fetch>
  void LookAtOwed(Fetch fetch) {
    constexpr auto kBeingToldMax = std::chrono::seconds(1);
    constexpr auto kPause = std::chrono::milliseconds(20);
    const auto began = std::chrono::steady_clock::now();
    stats_ = fetch();
    while (!is_dry_run_ && Owed("forgets_owed") + Owed("erasures_owed") > 0 &&
           stats_->Text("redis.is_ready") == "true" &&
           std::chrono::steady_clock::now() - began < kBeingToldMax) {
      std::this_thread::sleep_for(kPause);
      stats_ = fetch();
    }
  }

  bool HasRedis() const { return stats_ && stats_->Count("redis.connections"); }
  uint64_t Owed(std::string_view name) const {
    return stats_ ? stats_->Count(fmt::format("redis.{}", name)).value_or(0) : 0;
  }
  // Erased here, by this command or before, and not yet by the server.
  std::string WhatIsOwed() const {
    const uint64_t groups = Owed("forgets_owed"), blocks = Owed("erasures_owed");
    if (groups == 0 && blocks == 0) return "";
    const std::string what = fmt::format("{}{}{}", groups > 0 ? FormatCount(groups, "group") : "",
                                         groups > 0 && blocks > 0 ? " and " : "",
                                         blocks > 0 ? FormatCount(blocks, "block") : "");
    return fmt::format(
        "NOT TOLD YET: Redis, of {} erased here. This host takes nothing of that from it; others\n"
        "may until it is told, when it answers: see `terrace status`\n",
        what);
  }

  std::string Staying() const {
    return FormatCount(total_.skipped_count, "block") +
           (total_.skipped_count == 1 ? " stays" : " stay");
  }

  void Report() const {
    if (is_json_) {
      nlohmann::json document = {{"is_dry_run", is_dry_run_},
                                 {"block_count", total_.block_count},
                                 {"byte_count", total_.byte_count},
                                 {"skipped_count", total_.skipped_count}};
      if (!age_text_.empty()) document["older_than_ms"] = filter_.idle_ms_min;
      if (!tier_.empty()) document["tier"] = tier_;
      if (!key_texts_.empty()) document["not_here_count"] = NotHereCount();
      if (is_everywhere_) document["is_everywhere"] = true;
      if (is_by_key_) document["is_by_key"] = true;
      if (HasRedis() && !is_dry_run_) {
        document["redis_groups_owed"] = Owed("forgets_owed");
        document["redis_blocks_owed"] = Owed("erasures_owed");
      }
      PrintJson(document);
      return;
    }
    const char* const done = is_dry_run_ ? "would evict" : "evicted";
    if (tier_ == "redis" && age_text_.empty() && !is_dry_run_) {
      const std::string owed = WhatIsOwed();
      PrintText((owed.empty() ? "Redis finds nothing any more of what was stored there until now\n"
                              : "this host takes nothing of what Redis has stored until now\n") +
                owed);
      return;
    }
    const std::string count = tier_.empty() ? FormatCount(total_.block_count, "block")
                              : total_.block_count == 1
                                  ? "1 copy in " + tier_
                                  : FormatCount(total_.block_count) + " copies in " + tier_;
    std::string text = fmt::format("{} {}, {}\n", done, count, FormatBytes(total_.byte_count));
    if (NotHereCount() > 0) {
      const bool is_one = NotHereCount() == 1;
      const std::string_view on_redis =
          !HasRedis() ? ""
          : is_one    ? "; what a Redis server has of it is not found here any more"
                      : "; what a Redis server has of them is not found here any more";
      text += fmt::format("{} {} no block of this host{}\n", FormatCount(NotHereCount(), "key"),
                          is_one ? "names" : "name", on_redis);
      if (has_subtree_) {
        text += fmt::format(
            "what has lost its parent, and may continue {}, is left: --orphans takes it, of every "
            "group\n",
            is_one ? "it" : "them");
      }
    }
    if (total_.skipped_count > 0 && is_by_key_) {
      text +=
          fmt::format("{} in memory alone, leased or pinned; nothing of {} can be read below it\n",
                      Staying(), total_.skipped_count == 1 ? "it" : "them");
    } else if (total_.skipped_count > 0) {
      text += fmt::format(
          "{}: leased, pinned, or continued by a block that stays{}; `terrace show KEY` tells "
          "which, `terrace unpin NAME` ends a pin that has a name\n",
          Staying(), key_texts_.empty() || has_subtree_ ? "" : " (--subtree drops those too)");
    }
    PrintText(is_dry_run_ ? text : text + WhatIsOwed());
  }

  DaemonAddress address_;
  std::vector<std::string> key_texts_;
  std::vector<BlockKey> keys_;    // that they name, each once
  std::vector<BlockKey> absent_;  // of these, with --subtree: that are not here
  std::string group_;
  std::string age_text_;
  std::string tier_;
  std::string domain_;
  protocol::EvictWhereRequest filter_;
  protocol::EvictReply total_;
  std::optional<StatsView> stats_;  // once it was done
  bool is_all_ = false;
  bool has_subtree_ = false;
  bool is_everywhere_ = false;
  bool is_by_key_ = false;
  bool has_orphans_ = false;
  bool is_dry_run_ = false;
  bool is_confirmed_ = false;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeEvictVerb() { return std::make_unique<EvictVerb>(); }

}  // namespace terrace::tools
