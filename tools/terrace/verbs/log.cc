// `terrace log`: what people have done to a domain's cache since the daemon's start.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "terrace/protocol_admin.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/content/operator_requests.h"
#include "tools/terrace/verbs/content_verbs.h"
#include "tools/terrace/verbs/diagnosis_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;
using protocol::OperatorLogEntry;

constexpr char kLogDescription[] =
    "What operators did to this domain of late, latest first\n\n"
    "Evictions, resets, named pins, drains, changes of the configuration (those that were "
    "refused,\n"
    "too), recordings and repairs since the daemon's start, the last 256, from its memory; its\n"
    "log (journalctl -u terraced) has each as a line and keeps it. `terrace audit` is what the\n"
    "catalog on the drives remembers: erasures alone, over restarts.";

std::string VerbText(protocol::Verb verb) {
  if (verb == protocol::Verb::kEvict || verb == protocol::kVerbEvictWhere) return "evict";
  if (verb == protocol::Verb::kReset) return "reset";
  if (verb == protocol::kVerbNamedPin) return "pin";
  if (verb == protocol::kVerbTraceRecord) return "trace record";
  if (verb == protocol::kVerbFsck) return "fsck";
  if (verb == protocol::kVerbDrain) return "drain";
  if (verb == protocol::kVerbConfig) return "config";
  return fmt::format("verb {}", static_cast<unsigned>(verb));
}

// Of verbs that concern blocks how many, of those that do not nothing; where nothing was done,
// that.
std::string OutcomeText(const OperatorLogEntry& entry) {
  if (entry.status != StatusCode::kOk) {
    return fmt::format(": refused ({}; the daemon's log says why)", StatusCodeName(entry.status));
  }
  const bool has_blocks = entry.verb == protocol::Verb::kEvict ||
                          entry.verb == protocol::kVerbEvictWhere ||
                          entry.verb == protocol::Verb::kReset ||
                          entry.verb == protocol::kVerbNamedPin || entry.block_count > 0;
  std::string text;
  if (has_blocks) {
    text = fmt::format(": {}, {}", FormatCount(entry.block_count, "block"),
                       FormatBytes(entry.byte_count));
  }
  return text + (entry.is_whole != 0 ? "" : ", and ended before it was through");
}

class LogVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("log", kLogDescription);
    verb.AddOption("--limit", limit_, "At most so many")
        .Type("N")
        .ShowDefault()
        .Between(uint32_t{1}, protocol::kOperatorLogMax);
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    const auto stats = FetchStats(*link);
    if (!stats) return kExitFailed;
    const auto answer = AskOperatorLog(*link, limit_);
    if (!answer) return kExitFailed;
    const GroupNames names = GroupNamesOf(*stats);
    is_json_ ? PrintJson(ToJson(*answer, names)) : PrintLines(*answer, names);
    return kExitOk;
  }

 private:
  static void PrintLines(const LogAnswer& answer, const GroupNames& names) {
    if (answer.entries.empty()) {
      PrintText(
          "nobody has evicted, reset, pinned, drained, configured, recorded or repaired anything "
          "since the daemon's start\n");
      return;
    }
    const std::time_t now = std::time(nullptr);
    std::string text;
    for (const OperatorLogEntry& entry : answer.entries) {
      const std::time_t time = now - static_cast<std::time_t>(entry.age_ms / 1000);
      text += fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(time), VerbText(entry.verb));
      if (const std::string detail = TextOf(entry.detail); !detail.empty()) text += " " + detail;
      if (!entry.group.is_zero()) text += fmt::format(" group={}", GroupLabel(entry.group, names));
      text += fmt::format("{}, by uid {} pid {} ({})\n", OutcomeText(entry), entry.uid, entry.pid,
                          TextOf(entry.client_name));
    }
    if (answer.entries.size() < answer.reply.event_count) {
      text += fmt::format("{} of {} since the daemon's start; its log has the others\n",
                          answer.entries.size(), FormatCount(answer.reply.event_count, "event"));
    }
    PrintText(text);
  }

  DaemonAddress address_;
  uint32_t limit_ = 50;
  bool is_json_ = false;
};

}  // namespace

json ToJson(const LogAnswer& answer, const GroupNames& names) {
  json events = json::array();
  for (const OperatorLogEntry& entry : answer.entries) {
    const bool is_all = entry.group.is_zero();
    events.push_back({{"age_ms", entry.age_ms},
                      {"verb", VerbText(entry.verb)},
                      {"detail", TextOf(entry.detail)},
                      {"group", is_all ? json() : json(GroupLabel(entry.group, names))},
                      {"group_id", is_all ? json() : json(ToHex(entry.group))},
                      {"block_count", entry.block_count},
                      {"byte_count", entry.byte_count},
                      {"is_whole", entry.is_whole != 0},
                      {"status", StatusCodeName(entry.status)},
                      {"uid", entry.uid},
                      {"pid", entry.pid},
                      {"client", TextOf(entry.client_name)}});
  }
  return {{"events", events}, {"event_count", answer.reply.event_count}};
}

std::unique_ptr<Verb> MakeLogVerb() { return std::make_unique<LogVerb>(); }

}  // namespace terrace::tools
