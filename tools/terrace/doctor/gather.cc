#include "tools/terrace/doctor/gather.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"
#include "daemon/config/installed_unit.h"
#include "terrace/arena_layout.h"
#include "terrace/protocol_admin.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/refusal.h"

namespace terrace::tools {
namespace {

constexpr char kConfigPath[] = "/etc/terrace/terraced.toml";
constexpr char kDaemonUser[] = "terrace";
constexpr char kStateDir[] = "/var/lib/terrace";

// The daemon's Stats; empty with `*why`.
std::optional<StatsView> AskForStats(const DaemonAddress& address, const std::string& path,
                                     std::string* why, bool* is_refused) {
  ClientOptions options;
  options.socket_path = path;
  options.client_name = "terrace";
  const Result<std::unique_ptr<Client>> client = Client::Create(options, why);
  if (!client.ok()) return std::nullopt;
  const Status status = (*client)->WaitConnected(address.deadline_us());
  const Result<std::string> text =
      status.ok() ? (*client)->Stats(address.deadline_us()) : Result<std::string>(status);
  if (text.ok()) {
    const Result<StatsView> stats = StatsView::Parse(*text, why);
    if (stats.ok()) return *stats;
    *why = "its answer to Stats " + *why;
    return std::nullopt;
  }
  *why = (*client)->last_error();
  if (why->empty()) *why = DescribeStatus(text.status());
  *is_refused = !status.ok() && IsRefused(status, *why);
  return std::nullopt;
}

bool IsDenied(const Subject& subject) {
  int error = 0;
  const auto file = subject.calls.Stat(subject.socket_path, &error);
  return file ? S_ISSOCK(file->mode) && !MayWrite(*file, subject.own) : error == EACCES;
}

void AskDaemon(const DaemonAddress& address, Subject* subject) {
  subject->socket_path = address.path();
  int unused = 0;
  if (const auto file = subject->calls.Stat(subject->socket_path, &unused)) {
    subject->socket_group = GroupNamed(subject->files, file->gid);
  }
  subject->socket_why = WhyNobodyListens(subject->socket_path);
  if (!subject->socket_why.empty()) {
    subject->socket_state = IsDenied(*subject) ? SocketState::kDenied : SocketState::kSilent;
    return;
  }
  std::string why;
  bool is_refused = false;
  subject->stats = AskForStats(address, subject->socket_path, &why, &is_refused);
  if (subject->stats) {
    subject->socket_state = SocketState::kAnswers;
    return;
  }
  if (is_refused) {
    subject->socket_state = SocketState::kRefused;
    subject->socket_why = why;
    return;
  }
  subject->socket_state = SocketState::kMute;
  subject->socket_why = fmt::format("{} is there, and gives no answer within {} ms: {}",
                                    subject->socket_path, address.timeout_ms, why);
}

// A daemon tells each domain's clients of their own memory alone: each socket is asked.
void AskForPages(const DaemonAddress& address, Subject* subject) {
  uint64_t byte_count = 0;
  bool is_told = true;
  for (const DomainConfig& domain : subject->config.domains) {
    std::optional<StatsView> stats = subject->stats;
    if (domain.socket_path != subject->socket_path) {
      if (!WhyNobodyListens(domain.socket_path).empty()) continue;  // so it has no memory
      std::string why;
      bool is_refused = false;
      stats = AskForStats(address, domain.socket_path, &why, &is_refused);
    }
    const auto page_bytes = stats ? stats->Count("arena_page_bytes") : std::nullopt;
    const auto segments = stats ? stats->Count("segments_populated") : std::nullopt;
    const auto segment_bytes = stats ? stats->Count("segment_bytes") : std::nullopt;
    if (!page_bytes || !segments || !segment_bytes) {
      is_told = false;
    } else if (*page_bytes > kArenaPageBytes) {
      byte_count += *segments * *segment_bytes;
    } else {
      subject->has_small_pages = true;
    }
  }
  if (is_told) subject->huge_page_bytes = byte_count;
}

// What a file says; nothing is worked out yet.
struct ConfigRead {
  std::string path;
  bool is_named = true;   // by a person, or by the daemon's command line
  bool was_read = false;  // by the daemon, at its start: it is no file that can be read again
  Status status;
  DaemonConfig config;
  std::string why;
};

ConfigRead ReadConfig(const std::string& named_path, const std::string& default_path) {
  ConfigRead read{.path = named_path.empty() ? default_path : named_path,
                  .is_named = !named_path.empty()};
  read.status = ReadConfigFile(read.path, &read.config, &read.why);
  return read;
}

// What the daemon was started with: its own standard input is not ours, and a pipe was read.
ConfigRead ReadDaemonsConfig(const std::string& path, const std::string& default_path,
                             const HostCalls& calls) {
  int unused_error = 0;
  const auto file = calls.Stat(path, &unused_error);
  if (!path.empty() && !path.starts_with('/')) {
    return {.path = path,
            .status = Status(StatusCode::kIo, "the configuration file cannot be read", EACCES),
            .why = "terraced was started with --config " + path +
                   ", and this user may not know in which directory"};
  }
  if (path.starts_with("/dev/") || path.starts_with("/proc/") || (file && !S_ISREG(file->mode))) {
    return {.path = path, .was_read = true};
  }
  return ReadConfig(path, default_path);
}

// Who names a configuration and no socket asks about the daemon that it is for: the socket of the
// environment may be another one's. A file that names no domain leaves the socket to that.
DaemonAddress AddressOf(DaemonAddress address, const ConfigRead& named) {
  const bool is_of_environment =
      named.config.domains.empty() && std::getenv("TERRACE_SOCKET") != nullptr;
  if (!named.status.ok() || !address.socket_path.empty() || is_of_environment) return address;
  DaemonConfig config = named.config;
  std::string unused;
  if (ResolveConfig({}, ConfigEnvironment::OfProcess(), &config, &unused).ok()) {
    address.socket_path = config.domains.front().socket_path;
  }
  return address;
}

ConfigState StateOf(const ConfigRead& refused) {
  if (refused.was_read) return ConfigState::kGone;
  const int error = refused.status.detail();
  if (error == EACCES || error == EPERM) return ConfigState::kUnread;
  return error == ENOENT && !refused.is_named ? ConfigState::kAbsent : ConfigState::kRefused;
}

// What the daemon that answers says of its state_dir; null: it does not say, or not to this user.
nlohmann::json AskForStateDir(const DaemonAddress& address, const UserFacts& own,
                              const UserFacts& daemon) {
  if (own.uid != 0 && own.uid != daemon.uid) return nullptr;
  const auto link = AdminLink::Open(address);
  if (link == nullptr) return nullptr;
  std::string unused;
  const nlohmann::json told =
      AskConfig(*link, protocol::ConfigAction::kGet, "daemon.state_dir", &unused);
  const bool has_one = told.is_object() && told.contains("keys") && told["keys"].size() == 1;
  return has_one ? told : nlohmann::json();
}

// Where it keeps its state; empty: it does not say.
std::string AskStateDir(const DaemonAddress& address, const Subject& subject) {
  const nlohmann::json told = AskForStateDir(address, subject.own, subject.daemon);
  if (told.is_null()) return "";
  // As TOML says it, in either kind of quotes.
  const std::string value = told["keys"][0].value("value", "");
  return value.size() > 2 ? value.substr(1, value.size() - 2) : "";
}

// Of paths on its command line that begin where it was started, which its process does not show:
// the file it says itself, and its socket is the one that answers.
void MakeAbsolute(const DaemonAddress& address, const Subject& subject, DaemonCommand* running) {
  const auto is_relative = [](const std::string& path) {
    return !path.empty() && !path.starts_with('/');
  };
  if (is_relative(running->socket_path)) {
    running->socket_path = std::filesystem::absolute(subject.socket_path);
  }
  const auto user = UserOfProcess(subject.files, std::to_string(subject.pid.value_or(0)));
  if (!is_relative(running->config_path) || !user) return;
  const nlohmann::json told = AskForStateDir(address, subject.own, *user);
  const std::string path = told.is_null() ? "" : told.value("file", "");
  if (!path.empty()) running->config_path = path;
}

// Of the process that answers, else of the unit. A file of one's own is for a daemon of one's own.
UserFacts UserOfDaemon(const Subject& subject, const std::optional<InstalledUnit>& unit) {
  std::optional<UserFacts> user;
  if (subject.pid) user = UserOfProcess(subject.files, std::to_string(*subject.pid));
  if (!user && (subject.is_config_daemons || subject.own.uid == 0)) {
    user = UserNamed(subject.files, unit ? unit->user : kDaemonUser);
  }
  return user.value_or(subject.own);
}

// What its next start finds around it. This process's own is no measure for another user.
ConfigEnvironment EnvironmentOfDaemon(const Subject& subject,
                                      const std::optional<InstalledUnit>& unit,
                                      const std::string& told_state_dir) {
  const bool is_own = subject.daemon.uid == subject.own.uid;
  ConfigEnvironment environment = ConfigEnvironment::OfProcess();
  environment.uid = subject.daemon.uid;
  if (!subject.pid && unit && (subject.is_config_daemons || !is_own)) {
    environment = unit->Surroundings(subject.daemon.uid);
  } else if (!is_own) {
    environment = {.uid = subject.daemon.uid, .state_directory = kStateDir};
  }
  if (!told_state_dir.empty()) environment.state_directory = told_state_dir;
  return environment;
}

void TakeConfig(ConfigRead read, const DaemonCommand& running, const ConfigEnvironment& environment,
                Subject* subject) {
  subject->config_why = read.why;
  const ConfigOverrides overrides{.socket_path = running.socket_path,
                                  .dram_bytes = running.dram_bytes};
  if (read.status.ok() && !read.was_read &&
      ResolveConfig(overrides, environment, &read.config, &subject->config_why).ok()) {
    subject->config_state = ConfigState::kRead;
    subject->config = std::move(read.config);
    return;
  }
  subject->config_state = StateOf(read);
  // Defaults that depend on other keys; where one is missing, the values' own will do here.
  std::string unused;
  (void)ResolveConfig(overrides, environment, &subject->config, &unused);
}

}  // namespace

DaemonCommand ParseDaemonCommand(const std::string& words) {
  DaemonCommand command;
  const std::pair<const char*, std::string*> options[] = {{"--config", &command.config_path},
                                                          {"--socket", &command.socket_path},
                                                          {"--dram-bytes", &command.dram_bytes}};
  std::istringstream stream(words);
  for (std::string word; std::getline(stream, word, '\0');) {
    for (const auto& [name, value] : options) {
      if (word == name) std::getline(stream, *value, '\0');
      if (word.starts_with(std::string(name) + "=")) *value = word.substr(word.find('=') + 1);
    }
  }
  return command;
}

std::string CommandAsRoot(const std::string& config_path, const std::string& socket_path) {
  const auto quoted = [](const std::string& word) {
    constexpr std::string_view kSpecial = " \t\n\"'\\$`&|;<>()*?[]#~!{}";
    if (word.find_first_of(kSpecial) == word.npos) return word;
    std::string text = "'";
    for (const char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
    return text + "'";
  };
  std::string command = "sudo terrace doctor";
  if (!config_path.empty()) command += " --config " + quoted(config_path);
  if (!socket_path.empty()) command += " --socket " + quoted(socket_path);
  return command;
}

Subject GatherSubject(const HostFiles& files, const HostCalls& calls, const DaemonAddress& address,
                      const std::string& config_path) {
  Subject subject{.files = files, .calls = calls};
  subject.version = TERRACE_VERSION;
  subject.own = UserOfProcess(files, "self").value_or(UserFacts{.uid = getuid(), .name = "you"});
  subject.is_socket_named = !address.socket_path.empty();
  // sudo keeps no TERRACE_SOCKET.
  const bool is_told = subject.is_socket_named || std::getenv("TERRACE_SOCKET") != nullptr;
  subject.command_as_root = CommandAsRoot(config_path, is_told ? address.path() : "");
  const std::optional<InstalledUnit> unit = FindInstalledUnit();
  const std::string units_path =
      unit && !unit->config_path.empty() ? unit->config_path : kConfigPath;
  std::optional<ConfigRead> config;  // read once: before the daemon is asked if a person named it
  if (!config_path.empty()) config = ReadConfig(config_path, units_path);
  const DaemonAddress asked = config ? AddressOf(address, *config) : address;
  AskDaemon(asked, &subject);
  DaemonCommand running;
  if (subject.stats) {
    const auto pid = subject.stats->Count("pid");
    const std::string process = std::to_string(pid.value_or(0));
    // Of another pid namespace the same number is another process, or none.
    const auto name = files.Read("/proc/" + process + "/comm");
    if (pid && name && name->starts_with("terraced")) {
      subject.pid = static_cast<uint32_t>(*pid);
      running = ParseDaemonCommand(files.Read("/proc/" + process + "/cmdline").value_or(""));
      MakeAbsolute(asked, subject, &running);
    }
  }
  if (!config) config = ReadDaemonsConfig(running.config_path, units_path, calls);
  subject.config_path = config->path;
  subject.is_config_daemons = config->path == units_path || config->path == running.config_path ||
                              (unit && unit->Reads(config->path));
  subject.daemon = UserOfDaemon(subject, unit);
  if (unit && subject.is_config_daemons) subject.unit_directories = unit->directories;
  const std::string state_dir = subject.stats ? AskStateDir(asked, subject) : "";
  TakeConfig(std::move(*config), running, EnvironmentOfDaemon(subject, unit, state_dir), &subject);
  if (subject.stats) AskForPages(asked, &subject);
  return subject;
}

}  // namespace terrace::tools
