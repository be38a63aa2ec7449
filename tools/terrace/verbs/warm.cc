// `terrace warm`: brings blocks to DRAM before traffic comes.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/content/group_opener.h"
#include "tools/terrace/content/interrupt.h"
#include "tools/terrace/content/warm_list.h"
#include "tools/terrace/content/warmer.h"
#include "tools/terrace/verbs/content_verbs.h"

namespace terrace::tools {
namespace {

constexpr char kWarmDescription[] =
    "Bring blocks to DRAM before traffic comes\n\n"
    "FILE, or - for standard input, has a line for each key (32 hex digits), or for each prompt:\n"
    "  {\"group\": \"llama\", \"tokens\": [1, 2, 3]}   keys are derived as its engine does\n"
    "  {\"group\": \"llama\", \"keys\": [\"…\"]}         a chain of keys from a prompt's root\n"
    "Some 256 MiB are on their way at a time, or --rate. Ctrl-C ends it where it is. Nothing is\n"
    "pinned: `terrace pin` keeps blocks. Exit status 1 if some did not come to DRAM.";

class WarmVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("warm", kWarmDescription);
    verb.AddOption("FILE", path_, "The list; - is standard input").Required();
    verb.AddOption("--group,--space", group_, "Of lines that name none").Type("NAME");
    verb.AddOption("--rate", rate_text_, "At most so much a second, such as 1GiB").Type("BYTES");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    WarmLimits limits;
    if (!rate_text_.empty() &&
        (!ParseBytes(rate_text_, &limits.bytes_per_second) || limits.bytes_per_second == 0)) {
      Fail(fmt::format("warm: --rate is '{}' a second; {}", rate_text_, WantedBytes("1GiB")));
      return kExitUsage;
    }
    std::ifstream file;
    if (path_ == "-") {
      std::ios::sync_with_stdio(false);  // otherwise an error would look like the end
    } else {
      file.open(path_);
      if (!file) return Fail(fmt::format("warm: cannot read {}: {}", path_, std::strerror(errno)));
    }
    opener_ = GroupOpener::Connect(address_);
    if (opener_ == nullptr) return kExitFailed;
    Warmer warmer(*opener_, limits, IsInterrupted());
    WarmList list(path_ == "-" ? std::cin : file);
    const bool is_through = WarmAll(list, warmer);
    if (is_told_) std::fputc('\n', stderr);
    Report(warmer.counts());
    if (!list.why().empty()) {
      return Fail(fmt::format("warm: {} {}; what stood before it was warmed", path_, list.why()));
    }
    const WarmCounts& counts = warmer.counts();
    const bool is_whole = is_through && !IsInterrupted() && counts.left + counts.missing == 0;
    return is_whole ? kExitOk : kExitFailed;
  }

 private:
  // Keys of a line of their own, of one group, go together.
  static constexpr size_t kFlatMax = 1024;

  bool WarmAll(WarmList& list, Warmer& warmer) {
    std::map<GroupId, std::vector<BlockKey>> flat;
    const auto warm_flat = [&](const GroupId& id, std::vector<BlockKey>* keys) {
      const OpenedGroup* const group = opener_->Open(id);
      const bool is_good = group != nullptr && warmer.Warm(*group, *keys, false);
      keys->clear();
      Tell(warmer.counts());
      return is_good;
    };
    while (auto item = list.Next()) {
      if (IsInterrupted()) return true;
      if (item->group.empty()) item->group = group_;
      if (item->is_chain) {
        if (!WarmChain(*item, warmer)) return false;
        continue;
      }
      const std::optional<GroupId> id = GroupOf(*item);
      if (!id && has_failed_) return false;
      if (!id) {
        warmer.AddMissing(1);
        continue;
      }
      std::vector<BlockKey>& keys = flat[*id];
      keys.push_back(item->keys.front());
      if (keys.size() == kFlatMax && !warm_flat(*id, &keys)) return false;
    }
    for (auto& [id, keys] : flat) {
      if (!keys.empty() && !IsInterrupted() && !warm_flat(id, &keys)) return false;
    }
    return true;
  }

  bool WarmChain(WarmItem& item, Warmer& warmer) {
    if (item.group.empty()) {
      return Fail(fmt::format("warm: line {} names no group: add \"group\", or --group NAME",
                              item.line)) == kExitOk;
    }
    const OpenedGroup* const group = opener_->Open(item.group);
    if (group == nullptr) return false;
    if (!item.tokens.empty()) {
      const Result<PrefixHasher> hasher = opener_->client().Hasher(group->ref);
      if (!hasher.ok()) {
        FailRequest(opener_->client(), "cannot make keys of tokens", hasher.status());
        return false;
      }
      hasher->AppendKeys(item.tokens, &item.keys);
    }
    const bool is_good = item.keys.empty() || warmer.Warm(*group, item.keys, true);
    Tell(warmer.counts());
    return is_good;
  }

  // A key does not say of which group it is: of those that are here the listing does.
  std::optional<GroupId> GroupOf(const WarmItem& item) {
    if (!item.group.empty()) {
      const auto id = FindGroup(opener_->stats(), item.group);
      has_failed_ = !id;
      return id;
    }
    if (!is_listed_) {
      is_listed_ = true;
      has_failed_ =
          !ListBlocks(opener_->link(), {}, [&](std::span<const protocol::ListEntry> page) {
            for (const protocol::ListEntry& entry : page) groups_.emplace(entry.key, entry.group);
            return groups_.size() < kListedBlocksMax;
          });
    }
    const auto found = groups_.find(item.keys.front());
    return found == groups_.end() ? std::nullopt : std::optional(found->second);
  }

  void Tell(const WarmCounts& counts) {
    if (isatty(STDERR_FILENO) == 0) return;
    is_told_ = true;
    fmt::print(stderr, "\rterrace: {} of {} in DRAM, {} promoted",
               FormatCount(counts.asked - counts.left - counts.missing),
               FormatCount(counts.asked, "block"), FormatBytes(counts.promoted_bytes));
    std::fflush(stderr);
  }

  void Report(const WarmCounts& counts) const {
    if (is_json_) {
      nlohmann::json found = nlohmann::json::object();
      for (size_t tier = 0; tier < counts.found.size(); ++tier) {
        found[std::string(TierName(static_cast<protocol::TierKind>(tier)))] = counts.found[tier];
      }
      return PrintJson({{"asked_count", counts.asked},
                        {"found_by_tier", found},
                        {"promoted_count", counts.promoted},
                        {"promoted_bytes", counts.promoted_bytes},
                        {"left_count", counts.left},
                        {"missing_count", counts.missing},
                        {"is_cancelled", IsInterrupted().load()}});
    }
    std::string found;
    for (size_t tier = 0; tier < counts.found.size(); ++tier) {
      if (counts.found[tier] == 0) continue;
      found += fmt::format("{}{} in {}", found.empty() ? "" : ", ", FormatCount(counts.found[tier]),
                           TierName(static_cast<protocol::TierKind>(tier)));
    }
    PrintText(fmt::format("asked     {}\nfound     {}\npromoted  {}, {}\n",
                          FormatCount(counts.asked, "block"), found.empty() ? "none" : found,
                          FormatCount(counts.promoted, "block"),
                          FormatBytes(counts.promoted_bytes)));
    if (counts.left > 0) {
      PrintText(
          fmt::format("left      {} below DRAM: no room, too late, or behind one that "
                      "is missing\n",
                      FormatCount(counts.left, "block")));
    }
    PrintText(fmt::format("missing   {}\n", FormatCount(counts.missing, "block")));
    if (IsInterrupted()) PrintText("cancelled: what was on its way still comes\n");
  }

  DaemonAddress address_;
  std::string path_;
  std::string group_;
  std::string rate_text_;
  bool is_json_ = false;
  bool is_told_ = false;
  bool is_listed_ = false;
  bool has_failed_ = false;
  std::unique_ptr<GroupOpener> opener_;
  std::unordered_map<BlockKey, GroupId> groups_;
};

}  // namespace

std::unique_ptr<Verb> MakeWarmVerb() { return std::make_unique<WarmVerb>(); }

}  // namespace terrace::tools
