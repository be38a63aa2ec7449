#include "integration/process/daemon_process.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "test_paths.h"

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
  for (const auto& [name, fd] : stored_) close(fd);
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
  setenv("STATE_DIRECTORY", directory_.c_str(), 1);  // else root's are in the host's own
  PassDescriptors(surroundings);
  if (surroundings.watchdog_us > 0) {
    setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
    setenv("WATCHDOG_USEC", std::to_string(surroundings.watchdog_us).c_str(), 1);
  }
  if (surroundings.open_files_max > 0) {
    const rlimit files{std::min<rlim_t>(surroundings.open_files_max, 256),
                       surroundings.open_files_max};
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (!surroundings.preloaded.empty()) setenv("LD_PRELOAD", surroundings.preloaded.c_str(), 1);
  if (surroundings.obeys_permissions) prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
  execv(argv[0], argv.data());
  _exit(127);
}

bool DaemonProcess::StartReady(const Memory& memory) {
  const std::string config =
      WriteFile("t.toml", "[daemon]\nlog_level = \"debug\"\ndram_bytes = \"" + memory.dram_bytes +
                              "\"\nsegment_bytes = \"" + memory.segment_bytes +
                              "\"\nsegments_spare = " + std::to_string(memory.segments_spare) +
                              "\nhugepages = \"" + memory.hugepages + "\"\n");
  Start({"--config", config, "--socket", socket_path()});
  return WaitReady();
}

bool DaemonProcess::WaitNotified(const std::string& what) {
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += kStepMs) {
    pollfd poll_fd{.fd = notify_fd_, .events = POLLIN};
    std::string text;
    if (poll(&poll_fd, 1, kStepMs) == 1 && ReadNotification(&text) &&
        text.find(what) != std::string::npos) {
      return true;
    }
    siginfo_t dead{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &dead, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        dead.si_pid != 0) {
      return false;
    }
  }
  return false;
}

// As systemd does: from descriptor 3 on. In the child.
void DaemonProcess::PassDescriptors(const Surroundings& surroundings) const {
  std::vector<std::pair<std::string, int>> passed;
  if (surroundings.listening_fd >= 0) {
    passed.emplace_back(surroundings.listening_name, surroundings.listening_fd);
  }
  if (surroundings.has_fd_store) passed.insert(passed.end(), stored_.begin(), stored_.end());
  if (passed.empty()) return;
  std::string names;
  constexpr int kOutOfTheWay = 1000;
  for (auto& [name, fd] : passed) {
    names += (names.empty() ? "" : ":") + name;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, kOutOfTheWay);
  }
  for (size_t i = 0; i < passed.size(); ++i) dup2(passed[i].second, static_cast<int>(3 + i));
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", std::to_string(passed.size()).c_str(), 1);
  setenv("LISTEN_FDNAMES", names.c_str(), 1);
}

bool DaemonProcess::ReadNotification(std::string* text) {
  char bytes[4096];
  iovec piece{bytes, sizeof(bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(notify_fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return false;
  text->assign(bytes, static_cast<size_t>(got));
  int fd = -1;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  }
  const size_t named = text->find("FDNAME=");
  if (named == std::string::npos) return true;
  const std::string name = text->substr(named + std::strlen("FDNAME="));
  if (const auto found = stored_.find(name); found != stored_.end()) {
    close(found->second);
    stored_.erase(found);
  }
  if (fd >= 0) stored_[name] = fd;
  return true;
}

std::vector<std::string> DaemonProcess::StoredNames() const {
  std::vector<std::string> names;
  for (const auto& [name, fd] : stored_) names.push_back(name);
  return names;
}

void DaemonProcess::Signal(int signal) { kill(pid_, signal); }

int DaemonProcess::Wait() {
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += kStepMs) {
    int status = 0;
    const bool is_over = waitpid(pid_, &status, WNOHANG) == pid_;
    // A daemon that stops may wait for its notifications to be read.
    std::string ignored;
    while (ReadNotification(&ignored)) {
    }
    if (is_over) {
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
