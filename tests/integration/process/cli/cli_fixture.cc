#include "integration/process/cli/cli_fixture.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "test_paths.h"

namespace terrace {
namespace {

int ExitCodeOf(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

pid_t CliTest::Spawn(const std::vector<std::string>& arguments, int in, int out, int err) const {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string socket = "TERRACE_SOCKET=" + socket_path();
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    putenv(const_cast<char*>(socket.c_str()));
    execv(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

void CliTest::StartDaemon(const std::string& more) {
  if (!std::filesystem::exists(Path("secret"))) {
    ASSERT_EQ(Terrace({"domain", "new", Path("secret")}).exit_code, 0);
  }
  const std::string config = daemon_.WriteFile(
      "terraced.toml", fmt::format("[daemon]\n"
                                   "state_dir = \"{}\"\n"
                                   "dram_bytes = \"64MiB\"\n"
                                   "segment_bytes = \"16MiB\"\n{}"
                                   "[[domain]]\n"
                                   "name = \"chat\"\n"
                                   "socket = \"{}\"\n"
                                   "secret_file = \"{}\"\n",
                                   daemon_.directory(), more, socket_path(), Path("secret")));
  daemon_.Start({"--config", config});
  ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
}

void CliTest::KillDaemon() {
  daemon_.Signal(SIGKILL);
  daemon_.Wait();
}

CliTest::Outcome CliTest::Terrace(const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {TERRACE_CLI_PATH};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const int out = open(Path("out").c_str(), flags, 0600);
  const int err = open(Path("err").c_str(), flags, 0600);
  const pid_t pid = Spawn(command, in, out, err);
  close(in);
  close(out);
  close(err);
  const int exit_code = ExitCodeOf(pid);
  return {.exit_code = exit_code, .out = ReadText(Path("out")), .err = ReadText(Path("err"))};
}

CliTest::Outcome CliTest::TerraceOnTerminal(const std::vector<std::string>& arguments,
                                            const std::string& answer) const {
  std::vector<std::string> command = {TERRACE_CLI_PATH};
  command.insert(command.end(), arguments.begin(), arguments.end());
  int screen = -1;
  int terminal = -1;
  EXPECT_EQ(openpty(&screen, &terminal, nullptr, nullptr, nullptr), 0);
  const int out = open(Path("out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  EXPECT_EQ(write(screen, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  const pid_t pid = Spawn(command, terminal, out, terminal);
  close(out);
  const int exit_code = ExitCodeOf(pid);
  char shown[4096];
  const ssize_t count = read(screen, shown, sizeof(shown));
  close(terminal);
  close(screen);
  return {.exit_code = exit_code,
          .out = ReadText(Path("out")),
          .err = std::string(shown, count > 0 ? static_cast<size_t>(count) : 0)};
}

nlohmann::json CliTest::TerraceJson(std::vector<std::string> arguments) const {
  arguments.push_back("--json");
  const Outcome outcome = Terrace(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  nlohmann::json document = nlohmann::json::parse(outcome.out, nullptr, false);
  EXPECT_TRUE(document.is_object()) << outcome.out;
  return document.is_object() ? document : nlohmann::json::object();
}

void CliTest::FillWithPrompts() const {
  const nlohmann::json filled = TerraceJson({"bench", "mixed", "--prompts", "8", "--prompt-blocks",
                                             "8", "--block-bytes", "16K", "--ops", "200"});
  // 200 draws leave out one of 8 prompts once in 10^11 runs.
  EXPECT_EQ(filled.value("blocks_stored", 0), 40);
}

}  // namespace terrace
