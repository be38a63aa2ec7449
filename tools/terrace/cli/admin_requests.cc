#include "tools/terrace/cli/admin_requests.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/verb_names.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::optional<StatsView> FetchStats(AdminLink& link) {
  const protocol::StatsRequest asked;
  const auto body = link.Ask(protocol::Verb::kStats, std::as_bytes(std::span(&asked, 1)));
  if (!body.ok()) {
    Fail("the daemon did not answer Stats: " + link.why());
    return std::nullopt;
  }
  std::string why;
  const auto parsed = StatsView::Parse(
      std::string_view(reinterpret_cast<const char*>(body->data()), body->size()), &why);
  if (!parsed.ok()) {
    Fail(fmt::format(
        "the daemon's answer to Stats {}. Are `terrace` and `terraced` of the same release?", why));
    return std::nullopt;
  }
  return *parsed;
}

std::string WhyRefused(const AdminLink& link, std::string_view verb_name) {
  if (link.why().find("is none that a client sends") == std::string::npos) {
    return fmt::format("the daemon refused {}: {}", verb_name, link.why());
  }
  return fmt::format(
      "the daemon is older than this command: it does not know {} ({}), and has done nothing. "
      "Restart it with this release",
      verb_name, link.why());
}

nlohmann::json AskDocument(AdminLink& link, protocol::Verb verb, std::span<const std::byte> body,
                           std::string* why) {
  const std::string_view name = VerbNameOr(verb, "a verb");
  const auto answer = link.Ask(verb, body);
  if (!answer.ok()) {
    *why = WhyRefused(link, name);
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
  *why = "is no JSON object";
  nlohmann::json document = ParseJson(
      std::string_view(reinterpret_cast<const char*>(answer->data()), answer->size()), why);
  if (document.is_object()) return document;
  *why =
      fmt::format("the daemon's answer to {} {}. Are `terrace` and `terraced` of the same release?",
                  name, *why);
  return nlohmann::json(nlohmann::json::value_t::discarded);
}

std::string WhyUnserved(const StatsView& stats) {
  const std::string serving = stats.Text("domain.serving");
  const std::string domain = stats.Text("domain.name");
  if (serving == "bypassed") {
    return fmt::format(
        "domain {} is bypassed: its clients find and store nothing until `terrace drain --resume`",
        domain);
  }
  if (serving == "draining") {
    return fmt::format(
        "domain {} is being drained: nothing new is taken until `terrace drain --resume`", domain);
  }
  return "";
}

nlohmann::json AskConfig(AdminLink& link, protocol::ConfigAction action, std::string_view text,
                         std::string* why) {
  const protocol::ConfigRequest request{.action = action};
  const auto head = std::as_bytes(std::span(&request, 1));
  const auto tail = std::as_bytes(std::span(text));
  std::vector<std::byte> body(head.begin(), head.end());
  body.insert(body.end(), tail.begin(), tail.end());
  return AskDocument(link, protocol::kVerbConfig, body, why);
}

namespace {

bool IsOneLine(std::string_view text) {
  if (text.find('\n') == text.npos) return true;
  Fail(fmt::format("'{}' has more than one line: a change is KEY=VALUE, on one", text));
  return false;
}

std::optional<nlohmann::json> AskConfigOfLines(const DaemonAddress& address,
                                               protocol::ConfigAction action,
                                               std::string_view text) {
  const auto link = AdminLink::Open(address);
  if (link == nullptr) return std::nullopt;
  std::string why;
  nlohmann::json document = AskConfig(*link, action, text, &why);
  if (document.is_object()) return document;
  Fail(why);
  return std::nullopt;
}

}  // namespace

std::optional<nlohmann::json> AskConfig(const DaemonAddress& address, protocol::ConfigAction action,
                                        std::string_view text) {
  if (!IsOneLine(text)) return std::nullopt;
  return AskConfigOfLines(address, action, text);
}

std::optional<nlohmann::json> AskConfigSet(const DaemonAddress& address,
                                           const std::vector<std::string>& changes) {
  std::string text;
  for (const std::string& change : changes) {
    if (!IsOneLine(change)) return std::nullopt;
    text += (text.empty() ? "" : "\n") + change;
  }
  return AskConfigOfLines(address, protocol::ConfigAction::kSet, text);
}

bool ListBlocks(AdminLink& link, const ListPages& pages, const ListTaker& take) {
  protocol::ListRequest request{.entry_count_max = pages.page_entries, .root = pages.root};
  std::vector<protocol::ListEntry> entries;
  do {
    const auto body = link.Ask(protocol::Verb::kList, std::as_bytes(std::span(&request, 1)));
    if (!body.ok()) return Fail("the daemon did not answer List: " + link.why()) == kExitOk;
    protocol::ListReply reply;
    if (body->size() < sizeof(reply)) return Fail("List's answer is too short") == kExitOk;
    std::memcpy(&reply, body->data(), sizeof(reply));
    const size_t entry_bytes = size_t{reply.entry_count} * sizeof(protocol::ListEntry);
    if (body->size() != sizeof(reply) + entry_bytes) {
      return Fail("List's answer has another size") == kExitOk;
    }
    entries.resize(reply.entry_count);
    if (entry_bytes > 0) std::memcpy(entries.data(), body->data() + sizeof(reply), entry_bytes);
    if (!take(entries)) return true;
    request.cursor = reply.cursor;
  } while (request.cursor != 0);
  return true;
}

std::optional<Explained> AskExplain(AdminLink& link, const ExplainQuery& query) {
  const auto refuse = [](const std::string& why) {
    Fail(why);
    return std::nullopt;
  };
  const protocol::ExplainRequest request{.group = query.group,
                                         .key_count = static_cast<uint32_t>(query.keys.size()),
                                         .flags = query.flags};
  std::vector<std::byte> body(sizeof(request) + query.keys.size_bytes());
  std::memcpy(body.data(), &request, sizeof(request));
  std::memcpy(body.data() + sizeof(request), query.keys.data(), query.keys.size_bytes());
  const auto answer = link.Ask(protocol::kVerbExplain, body);
  if (!answer.ok()) return refuse("the daemon did not answer Explain: " + link.why());
  Explained explained;
  std::span<const std::byte> rest = *answer;
  if (rest.size() < sizeof(explained.reply)) return refuse("Explain's answer is too short");
  std::memcpy(&explained.reply, rest.data(), sizeof(explained.reply));
  rest = rest.subspan(sizeof(explained.reply));
  const size_t near_bytes = size_t{explained.reply.near_count} * sizeof(protocol::ExplainNear);
  if (rest.size() < near_bytes) return refuse("Explain's answer has another size");
  explained.nears.resize(explained.reply.near_count);
  if (near_bytes > 0) std::memcpy(explained.nears.data(), rest.data(), near_bytes);
  rest = rest.subspan(near_bytes);
  const bool is_asked = (query.flags & protocol::kExplainMembers) != 0;
  if (is_asked && !rest.empty()) explained.members = ReadSpaceMembers(rest);
  if (!rest.empty() && !explained.members) return refuse("Explain's answer has another size");
  return explained;
}

}  // namespace terrace::tools
