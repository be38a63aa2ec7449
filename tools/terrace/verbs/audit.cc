// `terrace audit`: who erased what of late, as the catalog of the persistent tier remembers it.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <cstddef>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/printable_text.h"
#include "terrace/protocol_introspection.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/verbs/diagnosis_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

std::string Unread(const std::string& why) {
  return fmt::format("the daemon's answer {}. Are `terrace` and `terraced` of the same release?",
                     why);
}

// "idle_s=0 tier=nvme": the one tier whose copies left, empty if whole blocks did.
std::string TierOf(const std::string& filter) {
  constexpr std::string_view kTier = "tier=";
  const size_t at = filter.find(kTier);
  if (at == filter.npos) return "";
  const std::string tier = filter.substr(at + kTier.size());
  return tier.starts_with("all") ? "" : tier.substr(0, tier.find(' '));
}

// Whose blocks: those of keys, of a group, or all there are.
std::string WhoseText(const json& line, const std::string& group) {
  const uint64_t asked_count = line.value("asked_count", uint64_t{0});
  const std::string keys = asked_count == 0 ? "" : FormatCount(asked_count, "key");
  if (group != "all") return (keys.empty() ? "group " : keys + " of group ") + group;
  return keys.empty() ? "all groups" : keys;
}

std::string EvictedText(const json& line, const std::string& group) {
  const std::string filter = PrintableText(line.value("filter", ""));
  const std::string tier = TierOf(filter);
  std::string text = fmt::format(
      "evicted {}{} of {}", tier.empty() ? "" : fmt::format("what {} had of ", tier),
      FormatCount(line.at("erased_count").get<uint64_t>(), "block"), WhoseText(line, group));
  if (!filter.empty()) text += fmt::format(" ({})", filter);
  return text;
}

class AuditVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("audit", "Who evicted or reset blocks, latest first");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    std::string why;
    const json lines = AskAudit(*link, &why);
    if (lines.is_discarded()) return Fail("audit: " + why);
    if (is_json_) {
      PrintJson({{"audit", lines}});
      return kExitOk;
    }
    const std::optional<std::string> text = Render(lines);
    if (!text)
      return Fail("audit: " + Unread("has a line without a field that this release reads"));
    PrintText(*text);
    return kExitOk;
  }

 private:
  static std::optional<std::string> Render(const json& lines) {
    if (lines.empty()) return "nobody has erased anything since this audit began\n";
    try {
      return RenderLines(lines);
    } catch (const json::exception&) {
    } catch (const fmt::format_error&) {  // a time that no calendar has
    }
    return std::nullopt;
  }

  static std::string RenderLines(const json& lines) {
    std::string text;
    for (const json& line : lines) {
      const std::time_t time = line.at("time_s").get<std::time_t>();
      const std::string group = PrintableText(line.at("group").get<std::string>());
      const std::string what =
          line.at("verb") == "reset" ? "reset group " + group : EvictedText(line, group);
      const bool is_whole = line.at("is_whole");
      text += fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}{} by uid {} pid {} ({})\n", fmt::gmtime(time),
                          what, is_whole ? "" : ", and ended before it was through,",
                          line.at("uid").get<uint64_t>(), line.at("pid").get<uint64_t>(),
                          PrintableText(line.at("client").get<std::string>()));
    }
    return text;
  }

  DaemonAddress address_;
  bool is_json_ = false;
};

}  // namespace

json AskAudit(AdminLink& link, std::string* why) {
  const protocol::FsckRequest request{.flags = protocol::kFsckAudit};
  const json answer =
      AskDocument(link, protocol::kVerbFsck, std::as_bytes(std::span(&request, 1)), why);
  if (answer.is_discarded()) return answer;
  json lines = json::array();
  const auto told = answer.find("audit");
  if (told == answer.end() || !told->is_array()) {
    *why = Unread("has no list 'audit'");
    return json(json::value_t::discarded);
  }
  for (const json& line : *told) {
    lines.push_back(ParseJson(line.is_string() ? line.get<std::string>() : "", why));
    if (!lines.back().is_discarded()) continue;
    *why = Unread(fmt::format("has a line {} that {}", lines.size(), *why));
    return json(json::value_t::discarded);
  }
  return lines;
}

std::unique_ptr<Verb> MakeAuditVerb() { return std::make_unique<AuditVerb>(); }

}  // namespace terrace::tools
