#include "tools/terrace/cli/private_daemon.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "terrace/arena_layout.h"
#include "terrace/domain_secret.h"
#include "terrace/units.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kSmallSegmentBytes = 32 * kMiB;
constexpr uint32_t kStepMs = 10;
constexpr uint32_t kStopTimeoutMs = 10'000;

// Small daemons get small segments, but a segment holds some slots of any size.
uint64_t SegmentBytes(const PrivateDaemon::Options& options) {
  constexpr uint64_t kSlotsPerSegmentMin = 4;
  const uint64_t wanted = std::bit_ceil(options.slot_bytes_max * kSlotsPerSegmentMin);
  if (options.dram_bytes >= 8 * kSegmentBytesMax) return kSegmentBytesMax;
  return std::clamp(wanted, kSmallSegmentBytes, kSegmentBytesMax);
}

bool IsProgram(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string PrivateDaemon::FindProgram(std::string* why) {
  std::vector<std::string> places;
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const char* beside : {"", "../daemon", "../sbin"}) {
      places.push_back((own.parent_path() / beside / "terraced").lexically_normal().string());
    }
  }
  std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  while (!path.empty()) {
    const size_t colon = std::min(path.find(':'), path.size());
    if (colon > 0) places.push_back(path.substr(0, colon) + "/terraced");
    path.erase(0, colon + 1);
  }
  for (const std::string& place : places) {
    if (IsProgram(place)) return place;
  }
  *why = fmt::format(
      "terraced is neither beside this program ({}) nor in PATH. Name it with --terraced",
      own.parent_path().string());
  return "";
}

std::unique_ptr<PrivateDaemon> PrivateDaemon::Start(const Options& options, std::string* why) {
  const std::string program = options.program.empty() ? FindProgram(why) : options.program;
  if (program.empty()) return nullptr;
  if (!IsProgram(program)) {
    *why =
        fmt::format("'{}' is no program that can be run. Name terraced with --terraced", program);
    return nullptr;
  }
  std::unique_ptr<PrivateDaemon> daemon(new PrivateDaemon());
  if (!daemon->Prepare(options, why) || !daemon->Listen(why) || !daemon->Launch(program, why) ||
      !daemon->AwaitReady(options.start_timeout_ms, why)) {
    return nullptr;
  }
  return daemon;
}

bool PrivateDaemon::Prepare(const Options& options, std::string* why) {
  const char* temporary = std::getenv("TMPDIR");
  directory_ = fmt::format("{}/terrace.XXXXXX", temporary == nullptr ? "/tmp" : temporary);
  if (mkdtemp(directory_.data()) == nullptr) {
    *why =
        fmt::format("cannot make a directory {}: {}. Set TMPDIR to a directory that can be written",
                    directory_, std::strerror(errno));
    directory_.clear();
    return false;
  }
  socket_path_ = directory_ + "/terrace.sock";
  const std::string secret = directory_ + "/secret";
  if (!CreateDomainSecretFile(secret, why).ok()) return false;
  const uint64_t segment_bytes = SegmentBytes(options);
  const uint64_t dram_bytes = RoundUp(options.dram_bytes, segment_bytes);
  // All memory is populated ahead of need, so that no page fault of the daemon is measured.
  const uint64_t segments_spare = std::min<uint64_t>(dram_bytes / segment_bytes, 1024);
  std::ofstream config(directory_ + "/terraced.toml");
  config << fmt::format(
      "[daemon]\n"
      "state_dir = \"{}\"\n"
      "dram_bytes = {}\n"
      "segment_bytes = {}\n"
      "segments_spare = {}\n"
      "[[domain]]\n"
      "name = \"bench\"\n"
      "socket = \"{}\"\n"
      "secret_file = \"{}\"\n",
      directory_, dram_bytes, segment_bytes, segments_spare, socket_path_, secret);
  config.close();
  if (config.fail()) {
    *why = fmt::format("cannot write {}/terraced.toml. Is the file system full?", directory_);
    return false;
  }
  return true;
}

// The daemon says READY=1 to NOTIFY_SOCKET, as it would to systemd.
bool PrivateDaemon::Listen(std::string* why) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ + "/notify";
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
  notify_fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (notify_fd_ >= 0 && path.size() < sizeof(address.sun_path) &&
      bind(notify_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return true;
  }
  *why = fmt::format("cannot listen on {}: {}. Set TMPDIR to a short path", path,
                     std::strerror(errno));
  return false;
}

bool PrivateDaemon::Launch(const std::string& program, std::string* why) {
  const std::string config = directory_ + "/terraced.toml";
  const std::string log = directory_ + "/terraced.log";
  const std::string notify = directory_ + "/notify";
  std::fflush(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    const int null = open("/dev/null", O_RDONLY);
    const int words = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(null, STDIN_FILENO);
    dup2(words, STDOUT_FILENO);
    dup2(words, STDERR_FILENO);
    setenv("NOTIFY_SOCKET", notify.c_str(), 1);
    execl(program.c_str(), program.c_str(), "--config", config.c_str(), nullptr);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", program.c_str(), std::strerror(errno));
    _exit(127);
  }
  if (pid_ < 0) {
    *why = fmt::format("cannot start a process for {}: {}", program, std::strerror(errno));
    return false;
  }
  return true;
}

bool PrivateDaemon::AwaitReady(uint32_t timeout_ms, std::string* why) {
  for (uint32_t waited_ms = 0; waited_ms < timeout_ms; waited_ms += kStepMs) {
    char message[256] = {};
    while (recv(notify_fd_, message, sizeof(message) - 1, MSG_DONTWAIT) > 0) {
      if (std::strstr(message, "READY=1") != nullptr) return true;
    }
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      *why = fmt::format("terraced did not start. Its last words:\n{}", LastWords());
      return false;
    }
    usleep(kStepMs * 1000);
  }
  *why = fmt::format("terraced was not ready within {} ms. Its last words:\n{}", timeout_ms,
                     LastWords());
  return false;
}

std::string PrivateDaemon::LastWords() const {
  std::ifstream log(directory_ + "/terraced.log");
  std::string words{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  constexpr size_t kWordsBytesMax = 2000;
  if (words.size() > kWordsBytesMax) words.erase(0, words.size() - kWordsBytesMax);
  return words.empty() ? "(none)" : words;
}

PrivateDaemon::~PrivateDaemon() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    uint32_t waited_ms = 0;
    while (waitpid(pid_, nullptr, WNOHANG) == 0 && waited_ms < kStopTimeoutMs) {
      usleep(kStepMs * 1000);
      waited_ms += kStepMs;
    }
    if (waited_ms >= kStopTimeoutMs) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  if (notify_fd_ >= 0) close(notify_fd_);
  std::error_code error;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, error);
}

}  // namespace terrace::tools
