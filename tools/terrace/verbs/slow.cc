// `terrace slow`: the requests of late that took longer than they should, and what they waited for.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/diagnosis_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;
using protocol::DiagnoseAction;

constexpr char kSlowDescription[] =
    "Requests that took long in the daemon, and what they waited for, latest first\n\n"
    "Of this domain, the last 256 that took daemon.slow_request_ms or longer. A request is told\n"
    "by its session and number, which the daemon's log and the client library's errors name,\n"
    "too. The times add up: queue (its turn), store (the daemon at work), seek (what the shared\n"
    "tier has), room (memory), writer (another session), verify (checksums), hbm, nvme, redis\n"
    "(bytes from there), disk (drives), reply (the client reads its answer).";

std::string Milliseconds(uint64_t us) { return fmt::format("{:.1f} ms", us / 1000.0); }

// The four longest phases, of those that took a hundredth of it or more.
std::string Phases(const json& row) {
  std::vector<std::pair<uint64_t, std::string>> phases;
  for (const auto& [name, us] : row.at("phases_us").items()) {
    if (us.get<uint64_t>() * 100 >= row.at("took_us").get<uint64_t>())
      phases.emplace_back(us, name);
  }
  std::ranges::sort(phases, std::ranges::greater());
  phases.resize(std::min<size_t>(phases.size(), 4));
  std::string text;
  for (const auto& [us, name] : phases) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, Milliseconds(us));
  }
  return text;
}

std::string RenderRow(const json& row, std::time_t now) {
  const std::time_t time =
      now - static_cast<std::time_t>(row.at("age_us").get<uint64_t>() / 1000000);
  const auto status = static_cast<StatusCode>(row.at("status").get<uint8_t>());
  std::string group = row.value("group_name", row.at("group").get<std::string>());
  if (group.size() > 24) group = group.substr(0, 21) + "...";
  return fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ} {} took {}\n"
      "    {}\n"
      "    request {} of session {}, uid {}, pid {}\n"
      "    {:.16}: {}, {}{}; {}\n",
      fmt::gmtime(time), row.at("verb").get<std::string>(),
      Milliseconds(row.at("took_us").get<uint64_t>()), Phases(row),
      row.at("request").get<uint64_t>(), row.at("session").get<std::string>(),
      row.at("uid").get<uint64_t>(), row.at("pid").get<uint64_t>(),
      row.at("client").get<std::string>(), FormatCount(row.at("blocks").get<uint64_t>(), "block"),
      FormatBytes(row.at("bytes").get<uint64_t>()), group.empty() ? "" : " of " + group,
      StatusCodeName(status));
}

std::string RenderCalls(const json& answer) {
  const auto limit_ms = answer.at("limit_ms").get<uint64_t>();
  const json& rows = answer.at("requests");
  const std::time_t now = std::time(nullptr);
  std::string text;
  for (const json& row : rows) text += RenderRow(row, now);
  if (limit_ms == 0) {
    text += "nothing is noted: daemon.slow_request_ms is 0; terrace config set changes it\n";
  } else if (rows.empty()) {
    text += fmt::format("no request took {} ms or longer (daemon.slow_request_ms)\n", limit_ms);
  } else {
    text += fmt::format("{} shown; {} since the daemon's start took {} ms or longer\n", rows.size(),
                        FormatCount(answer.at("request_count").get<uint64_t>()), limit_ms);
  }
  return text;
}

class SlowVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("slow", kSlowDescription);
    verb.AddOption("--limit", limit_, "At most so many")
        .Type("N")
        .ShowDefault()
        .Between(uint32_t{1}, uint32_t{256});
    verb.AddFlag("--reset", is_reset_, "Forget them once they are shown; for admins");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    std::string why;
    const json answer = AskDiagnose(
        *link,
        {.action = is_reset_ ? DiagnoseAction::kResetSlowRequests : DiagnoseAction::kSlowRequests,
         .row_count_max = limit_},
        &why);
    if (answer.is_discarded()) return Fail("slow: " + why);
    if (is_json_) {
      PrintJson(answer);
      return kExitOk;
    }
    try {
      PrintText(RenderCalls(answer));
      return kExitOk;
    } catch (const json::exception&) {
    } catch (const fmt::format_error&) {  // a time that no calendar has
    }
    return Fail("slow: the daemon's answer lacks a field that this release reads");
  }

 private:
  DaemonAddress address_;
  uint32_t limit_ = 20;
  bool is_reset_ = false;
  bool is_json_ = false;
};

}  // namespace

json AskDiagnose(AdminLink& link, protocol::DiagnoseRequest request, std::string* why) {
  json answer =
      AskDocument(link, protocol::kVerbDiagnose, std::as_bytes(std::span(&request, 1)), why);
  const auto rows = answer.is_discarded() ? answer.end() : answer.find("requests");
  if (answer.is_discarded() || rows == answer.end() || rows->empty()) return answer;
  const auto stats = FetchStats(link);
  if (!stats) return answer;
  std::map<std::string, std::string> names;
  for (const auto& [group, name] : GroupNamesOf(*stats)) names[ToHex(group)] = name;
  for (json& row : *rows) {
    const auto found = names.find(row.value("group", ""));
    if (found != names.end()) row["group_name"] = found->second;
  }
  return answer;
}

std::unique_ptr<Verb> MakeSlowVerb() { return std::make_unique<SlowVerb>(); }

}  // namespace terrace::tools
