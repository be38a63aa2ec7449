// terraced: reads its command line and configuration, builds the shell, and serves until it is told
// to stop. The only place where exceptions may fly.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"
#include "daemon/config/installed_unit.h"
#include "daemon/handover/memory_keeper.h"
#include "daemon/log/log.h"
#include "daemon/process/process_guard.h"
#include "daemon/process/sandbox.h"
#include "daemon/shell/live_config.h"
#include "daemon/shell/shell.h"
#include "src/build_version.h"
#include "src/printable_text.h"
#include "terrace/domain_secret.h"
#include "terrace/error.h"

namespace terrace {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitStart = 1;
constexpr int kExitUsage = 2;

struct CommandLine {
  ConfigSource source;
  bool is_check = false;
  bool is_print = false;
  bool is_keeper = false;
  bool allows_core_dumps = false;
};

int Refuse(const std::string& why, int exit_code) {
  std::fprintf(stderr, "terraced: %s\n", PrintableText(why).c_str());  // a file's names are in it
  return exit_code;
}

// kExitOk with `config` resolved, or the exit code after a sentence on standard error.
int ReadConfig(ConfigSource* source, DaemonConfig* config) {
  std::string why;
  if (!source->path.empty() && !ReadConfigText(source->path, &source->text, &why).ok()) {
    return Refuse(why, kExitUsage);
  }
  const Error loaded = LoadConfig(*source, config);
  return loaded.ok() ? kExitOk : Refuse(loaded.sentence(), kExitUsage);
}

// Root may read what the daemon may not: a check of the installed unit's file goes on as its user.
// kExitOk, or the exit code after a sentence on standard error.
int CheckAsUnit(ConfigSource* source, DaemonConfig* config) {
  const auto unit = geteuid() == 0 ? FindInstalledUnit() : std::nullopt;
  const auto account = unit && unit->Reads(source->path) ? FindAccount(unit->user) : std::nullopt;
  if (!account || account->uid == 0) return ReadConfig(source, config);
  std::string why;
  if (!BecomeAccount(*account, &why).ok()) return Refuse(why, kExitStart);
  source->environment = unit->Surroundings(account->uid);
  setenv("CREDENTIALS_DIRECTORY", "/run/credentials/terraced.service", 0);
  int exit_code = ReadConfig(source, config);
  for (const DomainConfig& domain : config->domains) {
    if (exit_code != kExitOk) break;
    DomainSecret unused;
    const Status read = ReadDomainSecretFile(domain.secret_file, &unused, &why);
    if (read.ok() || read.code() == StatusCode::kNotFound) continue;
    exit_code = Refuse("domain " + domain.name + ": " + why, kExitUsage);
  }
  if (exit_code != kExitOk) {
    std::fprintf(stderr, "terraced: found as %s, whom terraced.service runs it as\n",
                 account->name.c_str());
  }
  return exit_code;
}

// What the exception says that is being handled, and what to do.
std::string SentenceOfThrown() {
  constexpr const char* kMemory =
      "free some memory, or raise this process's limit of it (MemoryMax=, ulimit -v)";
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return std::string("memory is short: ") + kMemory;
  } catch (const std::filesystem::filesystem_error& error) {
    return error.what();
  } catch (const std::system_error& error) {
    std::string sentence = error.what();
    switch (error.code().value()) {  // an errno: of the C++ runtime's category, or of Asio's
      case EAGAIN:
        return sentence +
               ": a thread is not to be had; raise the limit of tasks (TasksMax=, ulimit -u)";
      case EMFILE:
        return sentence + ": raise the limit of open files (LimitNOFILE=, ulimit -n)";
      case ENOSPC:  // no drive's
        return sentence +
               ": this user's processes watch as many descriptors as they may; raise "
               "fs.epoll.max_user_watches (sysctl)";
      case ENOMEM:
        return sentence + ": " + kMemory;
      default:
        return sentence;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
}

// False: a thread is left that hangs. `*exit_code` is what the process ends with.
bool Run(Shell& shell, int* exit_code) {
  try {
    return shell.Run();
  } catch (const std::exception&) {
    *exit_code = Refuse("ends while it serves: " + SentenceOfThrown(), kExitStart);
    return true;
  }
}

int Serve(const DaemonConfig& config, const ConfigSource& source) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with words (EFBIG)
  std::string unconfined, confine_why;
  if (!ConfineFilesOf(config, &unconfined, &confine_why).ok()) {
    return Refuse(confine_why, kExitStart);
  }
  StartLog({.level = config.log_level,
            .format = config.log_format,
            .queue_lines_max = config.log_queue_lines_max});
  if (!unconfined.empty()) {
    Log(LogLevel::kInfo, "sandbox", {{"files", "not confined"}, {"why", unconfined}});
  }
  int exit_code = kExitOk;
  {
    Shell shell(config, source);
    std::string why;
    if (shell.Start(&why).ok()) {
      if (!Run(shell, &exit_code)) {
        (void)StopLog();
        std::_Exit(kExitOk);
      }
    } else {
      exit_code = Refuse(why, kExitStart);
    }
  }
  if (!StopLog()) std::_Exit(exit_code);
  return exit_code;
}

int Keep(const std::string& socket_path) {
  if (socket_path.empty()) {
    return Refuse("--keeper needs --socket, the daemon's keeper_socket", kExitUsage);
  }
  std::string why;
  const std::string directory = std::filesystem::path(socket_path).parent_path();
  if (!ConfineFiles({{directory}}, &why).ok() || !ConfineCalls({}, &why).ok()) {
    std::fprintf(stderr, "terraced: the keeper is not confined: %s\n", why.c_str());
    why.clear();
  }
  return RunMemoryKeeper(socket_path, &why).ok() ? kExitOk : Refuse(why, kExitStart);
}

// An option that there is none of, if that is what is wrong, is named before what the library
// makes of the words behind it.
std::string WhatIsWrong(const CLI::App& app, const CLI::ParseError& error) {
  for (const std::string& word : app.remaining()) {
    if (word.size() < 2 || !word.starts_with('-')) continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
    }
    const std::string nearest = NearestName(name, names);
    return "'" + name + "' is no option of terraced" +
           (nearest.empty() ? "" : ": did you mean " + nearest + "?") + "; see terraced --help";
  }
  if (const std::vector<std::string> words = app.remaining(); !words.empty()) {
    if (words.front() == "help" || words.front() == "version") {
      return "'" + words.front() + "' is an option: terraced --" + words.front();
    }
    return "'" + words.front() + "' stands alone: a configuration file is named by --config " +
           words.front() + "; see terraced --help";
  }
  return std::string(error.what()) + "; see terraced --help";
}

// Ends with `text` on standard output, of which nothing is lost in silence.
int Answer(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return kExitOk;
  return Refuse("standard output takes no more of the answer: " +
                    std::string(std::strerror(errno)) + ". Free its disk or name another file",
                kExitStart);
}

int Main(int argc, char** argv) {
  CLI::App app("The Terrace KV cache daemon.", "terraced");
  CommandLine command;
  app.add_option("--config", command.source.path, "TOML configuration file");
  app.add_option("--socket", command.source.overrides.socket_path,
                 "socket of the only domain; with --keeper, of the keeper");
  CLI::Option* const keeper = app.add_flag(
      "--keeper", command.is_keeper,
      "hold a daemon's memory across its restarts and crashes, at --socket; nothing else");
  app.add_option("--dram-bytes", command.source.overrides.dram_bytes,
                 "shared memory over all domains, such as 8GiB");
  app.add_flag("--allow-core-dumps", command.allows_core_dumps,
               "for debugging: a core holds every tenant's bytes and secrets");
  app.add_flag("--check-config", command.is_check, "check the configuration, start nothing");
  app.add_flag("--print-config", command.is_print,
               "print the configuration in effect, start nothing");
  // An unset variable of a script is no value, and not the default either.
  for (const char* const option : {"--config", "--socket", "--dram-bytes"}) {
    app.get_option(option)->check([](const std::string& text) {
      return text.empty() ? std::string("it is given no value") : std::string();
    });
  }
  app.set_version_flag("--version", std::string("terraced ") + BuildVersion());
  for (const char* const option :
       {"--config", "--dram-bytes", "--check-config", "--print-config"}) {
    keeper->excludes(app.get_option(option));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    std::ostringstream text;
    app.exit(request, text);
    return Answer(text.str());
  } catch (const CLI::ParseError& error) {
    return Refuse(WhatIsWrong(app, error), kExitUsage);
  }
  if (!command.allows_core_dumps) ForbidCoreDumps();
  ConfigSource& source = command.source;
  std::string& socket_path = source.overrides.socket_path;
  if (!socket_path.empty()) socket_path = std::filesystem::absolute(socket_path);
  if (command.is_keeper) {
    HoldHangUps(false);
    return Keep(socket_path);
  }
  // Reloads are of the same file, wherever the daemon may go.
  if (!source.path.empty()) source.path = std::filesystem::absolute(source.path);
  source.environment = ConfigEnvironment::OfProcess();
  DaemonConfig config;
  const int exit_code =
      command.is_check ? CheckAsUnit(&source, &config) : ReadConfig(&source, &config);
  if (exit_code != kExitOk) return exit_code;
  if (!command.is_check && !command.is_print) return Serve(config, source);
  const std::string text = command.is_print
                               ? PrintConfig(config)
                               : (source.path.empty() ? "the configuration" : source.path) +
                                     " is well: domains: " + std::to_string(config.domains.size()) +
                                     ", DRAM: " + FormatBytes(config.dram_bytes) +
                                     "; this host's memory, drives, sockets and secrets were "
                                     "not looked at: `terrace doctor --config " +
                                     (source.path.empty() ? "FILE" : source.path) + "` does\n";
  return Answer(text);
}

// systemd starts the service again at once, and without limit. That is meant for a crash; what
// refused a start is there again until somebody has mended it.
int EndAsService(int exit_code) {
  constexpr unsigned kPauseSeconds = 5;
  const char* const started = std::getenv("SYSTEMD_EXEC_PID");
  const bool is_service = started != nullptr && std::to_string(getpid()) == started;
  if (exit_code != kExitOk && is_service) sleep(kPauseSeconds);  // a signal ends the process
  return exit_code;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  terrace::HoldHangUps(true);
  terrace::EndAtOnceOnSignals();
  try {
    return terrace::EndAsService(terrace::Main(argc, argv));
  } catch (const std::exception&) {
    return terrace::EndAsService(
        terrace::Refuse("cannot start: " + terrace::SentenceOfThrown(), terrace::kExitStart));
  }
}
