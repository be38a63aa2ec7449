// `terrace debug dump`: what a report of a bug needs, in one file that jq and people read. Composed
// of what other verbs ask; a part that cannot be had says why.
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "daemon/config/config_text.h"
#include "src/build_version.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/doctor/checks.h"
#include "tools/terrace/doctor/gather.h"
#include "tools/terrace/doctor/report.h"
#include "tools/terrace/doctor/system_host.h"
#include "tools/terrace/verbs/diagnosis_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr int kLogTriesMax = 10;  // "busy": a line is just being written

constexpr char kDebugDumpDescription[] =
    "Write what a report of a bug needs into one file\n\n"
    "Versions, the configuration in effect, status, slow requests, what operators did, the last\n"
    "lines of the daemon's log, and what `terrace doctor` finds: one JSON document. Ask as an\n"
    "admin (root) for all of it; of a daemon that does not answer it holds what this command\n"
    "knows alone, and why. Keys of blocks, tokens, secrets and names of pins are not in it; names\n"
    "of models, users, hosts and paths are.";

json Unanswered(const std::string& why) { return {{"unanswered", why}}; }

// Text of which the names of pins are cut: people name prompts by them.
std::string WithoutPinName(std::string line) {
  const size_t detail = line.find("NamedPin") == line.npos ? line.npos : line.find("detail");
  return detail == line.npos ? line : line.substr(0, detail) + "(pin's name left out)";
}

// What stands before the @ of an address, where somebody wrote a login into one.
std::string WithoutLogins(std::string text) {
  constexpr std::string_view kEnds = " '\"\n";
  for (size_t at = text.find('@'); at != text.npos; at = text.find('@', at + 1)) {
    const size_t begin = text.find_last_of(kEnds, at) + 1;
    at = text.rfind('@', text.find_first_of(kEnds, at));
    if (text.find(':', begin) > at) continue;
    text.replace(begin, at - begin, "(left out)");
    at = text.find('@', begin);
  }
  return text;
}

json Lines(const std::string& text) {
  json lines = json::array();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

class DebugDumpVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("dump", kDebugDumpDescription);
    verb.AddOption("FILE", path_,
                   "A new file, or - for standard output (default: terrace-dump-TIME.json here)");
    verb.AddOption("--config", config_path_,
                   "The daemon's configuration (default: the running daemon's, else "
                   "/etc/terrace/terraced.toml)")
        .Type("FILE");
    DeclareAddress(verb, &address_);
    return verb;
  }

  ExitCode Run() override {
    const std::time_t now = std::time(nullptr);
    if (path_.empty()) path_ = fmt::format("terrace-dump-{:%Y%m%dT%H%M%SZ}.json", fmt::gmtime(now));
    const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
    const HostFiles files;
    const SystemHost calls;
    const Subject subject = GatherSubject(files, calls, address_, config_path_);
    json dump = {{"dump", {{"format", 1}, {"time", time}, {"terrace", BuildVersion()}}},
                 {"doctor", ToJson(Examine(subject))},
                 {"config_file",
                  {{"path", subject.config_path},
                   {"why_defaults", subject.config_why},
                   {"keys", Lines(PrintConfig(subject.config))}}}};
    AddDaemon(subject, &dump);
    return Write(dump);
  }

 private:
  void AddDaemon(const Subject& subject, json* dump) const {
    (*dump)["daemon"] = {{"socket", subject.socket_path}, {"answers", subject.stats.has_value()}};
    const auto link = subject.stats ? AdminLink::Open(address_) : nullptr;
    if (link == nullptr) {
      (*dump)["daemon"] = Unanswered(subject.stats ? "it has ended meanwhile" : subject.socket_why);
      (*dump)["daemon"]["socket"] = subject.socket_path;
      return;
    }
    std::string why;
    const auto add = [&](const char* part, json answer) {
      (*dump)[part] = answer.is_discarded() ? Unanswered(why) : std::move(answer);
    };
    const protocol::ConfigRequest config{.action = protocol::ConfigAction::kGet};
    add("status", subject.stats->document());
    add("config",
        AskDocument(*link, protocol::kVerbConfig, std::as_bytes(std::span(&config, 1)), &why));
    add("slow", AskDiagnose(*link, {}, &why));
    add("audit", AskAudit(*link, &why));
    json log(json::value_t::discarded);
    for (int i = 0; i < kLogTriesMax && log.is_discarded(); ++i) {
      log = AskDiagnose(*link, {.action = protocol::DiagnoseAction::kLogLines}, &why);
    }
    if (log.is_object()) {
      for (json& line : log["lines"]) line = WithoutPinName(line.get<std::string>());
    }
    add("log", std::move(log));
    json operators(json::value_t::discarded);
    if (const auto answer = AskOperatorLog(*link, protocol::kOperatorLogMax)) {
      operators = ToJson(*answer, GroupNamesOf(*subject.stats));
      for (json& event : operators["events"]) {
        if (event["verb"] == "pin") event.erase("detail");
      }
    } else {
      why = "the daemon did not answer OperatorLog";
    }
    add("operators", std::move(operators));
  }

  ExitCode Write(const json& dump) const {
    const std::string text = WithoutLogins(JsonText(dump, 1) + "\n");
    if (path_ == "-") {
      PrintText(text);
      return kExitOk;
    }
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST) {
      return Fail(path_ + " exists, and is left as it is: name another file");
    }
    int error = fd < 0 ? errno : 0;
    for (size_t done = 0; error == 0 && done < text.size();) {
      const ssize_t written = write(fd, text.data() + done, text.size() - done);
      if (written < 0 && errno != EINTR) error = errno;
      if (written > 0) done += static_cast<size_t>(written);
    }
    if (fd >= 0 && close(fd) != 0 && error == 0) error = errno;
    if (fd >= 0 && error != 0) unlink(path_.c_str());
    if (error != 0) {
      return Fail(fmt::format("cannot write {}: {}; name another file, or - for standard output",
                              path_, std::strerror(error)));
    }
    std::string told = fmt::format("{}: {}\n", path_, FormatBytes(text.size()));
    for (const auto& [name, part] : dump.items()) {
      if (part.contains("unanswered")) {
        told += name + ": " + part["unanswered"].get<std::string>() + "\n";
      }
    }
    PrintText(told);
    return kExitOk;
  }

  DaemonAddress address_;
  std::string path_;
  std::string config_path_;
};

}  // namespace

VerbFamily MakeDebugVerbs() {
  VerbFamily family{.name = "debug", .description = "For reports of bugs", .verbs = {}};
  family.verbs.push_back(std::make_unique<DebugDumpVerb>());
  return family;
}

}  // namespace terrace::tools
