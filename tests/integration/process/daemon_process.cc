#include "integration/process/daemon_process.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace terrace::test {
namespace {

constexpr int kDeadlineMs = 30'000;  // a sanitized daemon on a busy machine
constexpr int kStepMs = 5;

}  // namespace

DaemonProcess::DaemonProcess() {
  std::string pattern = std::filesystem::temp_directory_path() / "terrace-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  directory_ = pattern;
  notify_fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  std::strcpy(address.sun_path, (directory_ + "/notify").c_str());
  if (bind(notify_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::abort();
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(notify_fd_);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string DaemonProcess::WriteFile(const std::string& name, const std::string& content,
                                     mode_t mode) {
  const std::string path = directory_ + "/" + name;
  std::ofstream(path) << content;
  chmod(path.c_str(), mode);
  return path;
}

void DaemonProcess::Start(const std::vector<std::string>& arguments,
                          const Surroundings& surroundings) {
  const std::string errors = directory_ + "/stderr";
  const std::string notify = directory_ + "/notify";
  std::vector<char*> argv{const_cast<char*>(TERRACED_PATH)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dup2(fd, STDERR_FILENO);
  dup2(fd, STDOUT_FILENO);
  setenv("NOTIFY_SOCKET", notify.c_str(), 1);
  if (surroundings.listening_fd >= 0) {
    dup2(surroundings.listening_fd, 3);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_FDNAMES", surroundings.listening_name.c_str(), 1);
  }
  if (surroundings.watchdog_us > 0) {
    setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
    setenv("WATCHDOG_USEC", std::to_string(surroundings.watchdog_us).c_str(), 1);
  }
  if (surroundings.obeys_permissions) prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
  execv(argv[0], argv.data());
  _exit(127);
}

bool DaemonProcess::StartReady(const Memory& memory) {
  const std::string config = WriteFile(
      "t.toml", "[daemon]\nlog_level = \"debug\"\ndram_bytes = \"" + memory.dram_bytes +
                    "\"\nsegment_bytes = \"" + memory.segment_bytes +
                    "\"\nsegments_spare = " + std::to_string(memory.segments_spare) + "\n");
  Start({"--config", config, "--socket", socket_path()});
  return WaitReady();
}

bool DaemonProcess::WaitNotified(const std::string& what) {
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += kStepMs) {
    pollfd poll_fd{.fd = notify_fd_, .events = POLLIN};
    if (poll(&poll_fd, 1, kStepMs) == 1) {
      char message[4096];
      const ssize_t got = recv(notify_fd_, message, sizeof(message), MSG_DONTWAIT);
      if (got > 0 &&
          std::string(message, static_cast<size_t>(got)).find(what) != std::string::npos) {
        return true;
      }
    }
    siginfo_t dead{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &dead, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        dead.si_pid != 0) {
      return false;
    }
  }
  return false;
}

void DaemonProcess::Signal(int signal) { kill(pid_, signal); }

int DaemonProcess::Wait() {
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += kStepMs) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    usleep(kStepMs * 1000);
  }
  return -1;
}

std::string DaemonProcess::Errors() const {
  std::stringstream content;
  content << std::ifstream(directory_ + "/stderr").rdbuf();
  return content.str();
}

}  // namespace terrace::test
