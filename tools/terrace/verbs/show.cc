// `terrace show`: one block, and why it is not there if it is not.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/printable_text.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/miss_text.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/content/operator_requests.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

using protocol::ListEntry;

std::string Line(std::string_view title, const std::string& text) {
  return fmt::format("{:<10}{}\n", title, PrintableText(text));
}

std::string StateText(const ListEntry& entry) {
  switch (entry.state) {
    case protocol::BlockState::kSealed:
      return "sealed";
    case protocol::BlockState::kReserved:
      return "being written";
    case protocol::BlockState::kAbsent:
      break;
  }
  return "absent";
}

bool IsPinned(const ListEntry& entry) { return (entry.flags & protocol::kQueriedPinned) != 0; }

// "a pin", or the names that keep it.
std::string PinText(const ListEntry& entry, const std::vector<std::string>& pins) {
  if (!IsPinned(entry)) return "";
  if (pins.empty()) return ", and pinned";
  return fmt::format(", and pinned by {}", fmt::join(pins, ", "));
}

std::string RenderEntry(const ListEntry& entry, const GroupNames& names,
                        const std::vector<std::string>& pins) {
  const bool is_persisted = (entry.flags & protocol::kQueriedPersisted) != 0;
  std::string text = Line("block", ToHex(entry.key));
  text += Line("group", fmt::format("{} ({})", GroupLabel(entry.group, names), ToHex(entry.group)));
  text += Line("state", StateText(entry) + (is_persisted ? ", outlives a crash" : ""));
  text += Line("size", FormatBytes(entry.byte_count));
  text += Line("copies", FormatTiers(entry.tier_mask));
  text += Line("chain", fmt::format("{} before it; {}", FormatCount(entry.position, "block"),
                                    entry.parent.is_zero() ? "it has no parent here"
                                                           : "parent " + ToHex(entry.parent)));
  text += Line("", fmt::format("{} child{} here", FormatCount(entry.child_count),
                               entry.child_count == 1 ? "" : "ren"));
  text += Line("held by", FormatCount(entry.lease_count, "lease") + PinText(entry, pins));
  text += Line("priority",
               fmt::format("{} of 0 (first to go) to {}", entry.priority, protocol::kPriorityMax));
  text += Line("used", fmt::format("{}, last {} ago", FormatCount(entry.hit_count, "hit"),
                                   FormatMilliseconds(entry.idle_ms)));
  text += Line("age", FormatMilliseconds(entry.age_ms));
  text += Line("expires",
               entry.expires_in_s == 0
                   ? "never"
                   : fmt::format("in {}", FormatMilliseconds(uint64_t{entry.expires_in_s} * 1000)));
  return text;
}

class ShowVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("show", "One block: copies, chain, leases, pins, age");
    verb.AddOption("KEY", key_text_, "The block's key, 32 hex digits as `terrace ls` prints it")
        .Required();
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (!ParseKeyArgument(key_text_, &key_)) return kExitUsage;
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    const auto stats = FetchStats(*link);
    if (!stats) return kExitFailed;
    std::optional<ListEntry> entry;
    // The first of a subtree is its root.
    const bool is_listed = ListBlocks(*link, {.root = key_, .page_entries = 1},
                                      [&](std::span<const ListEntry> entries) {
                                        if (!entries.empty()) entry = entries.front();
                                        return !entry;
                                      });
    if (!is_listed) return kExitFailed;
    if (!entry) return TellAbsent(*link, *stats);
    const GroupNames names = GroupNamesOf(*stats);
    std::vector<std::string> pins;
    if (IsPinned(*entry)) {
      for (const auto& pin : PinsOf(*link, key_)) pins.push_back(TextOf(pin.name));
    }
    if (is_json_) {
      nlohmann::json document = ToJson(*entry, names);
      document["pins"] = pins;
      PrintJson(document);
    } else {
      PrintText(RenderEntry(*entry, names, pins));
    }
    return kExitOk;
  }

 private:
  // A key is of one group; only that one may remember it.
  ExitCode TellAbsent(AdminLink& link, const StatsView& stats) const {
    std::string why = "never stored there, or longer ago than the daemon remembers";
    for (const auto& [group, name] : GroupNamesOf(stats)) {
      const auto explained = AskExplain(link, {.group = group, .keys = std::span(&key_, 1)});
      if (!explained) return kExitFailed;
      const protocol::ExplainReply& reply = explained->reply;
      if (reply.reason != protocol::StopReason::kForgotten) continue;
      why = fmt::format("of group {}, {}, {} ago", name, CauseText(reply.cause),
                        FormatMilliseconds(reply.age_ms));
    }
    if (is_json_) PrintJson({{"key", ToHex(key_)}, {"state", "absent"}, {"why", why}});
    return Fail(
        fmt::format("no block {} in domain {} at {}: {}. `terrace ls` lists keys; another "
                    "domain has another socket (--socket)",
                    ToHex(key_), link.domain_name(), address_.path(), why));
  }

  DaemonAddress address_;
  std::string key_text_;
  BlockKey key_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeShowVerb() { return std::make_unique<ShowVerb>(); }

}  // namespace terrace::tools
