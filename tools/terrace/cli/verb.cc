#include "tools/terrace/cli/verb.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/printable_text.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/refusal.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kTimeoutMsMax = 600'000;
constexpr char kSystemSocket[] = "/run/terrace/default.sock";

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Also where this user may not look.
bool MayExist(const std::string& path) { return Exists(path) || errno == EACCES; }

std::string HowToStart(const std::string& path) {
  return fmt::format(
      "Start it with `systemctl start terraced`, or `terraced --config FILE` with a domain whose "
      "socket is {}; or name another socket with --socket or TERRACE_SOCKET",
      path);
}

}  // namespace

std::string WhyNobodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return fmt::format("the socket path '{}' has {} bytes, the limit is {}. Use a shorter path",
                       path, path.size(), sizeof(address.sun_path) - 1);
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == EACCES) {
      return fmt::format(
          "permission denied: uid {} may not look at socket {}. Run as a member of its directory's "
          "group (terrace, as "
          "installed) or as root, or name another socket with --socket or TERRACE_SOCKET",
          getuid(), path);
    }
    if (errno != ENOENT) {
      return fmt::format("cannot look at socket {}: {}. Check the directory's permissions", path,
                         std::strerror(errno));
    }
    return fmt::format("no daemon: there is no socket {}. {}", path, HowToStart(path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return fmt::format(
        "{} is not a socket. Give the domain's socket, e.g. {}, with --socket or TERRACE_SOCKET",
        path, kSystemSocket);
  }
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fmt::format("cannot make a socket: {}", std::strerror(errno));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  int outcome = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  int error = outcome == 0 ? 0 : errno;
  close(fd);
  if (error == 0 || error == EAGAIN) return "";  // EAGAIN: a full backlog; the client retries
  if (error == ECONNREFUSED) {
    return fmt::format("no daemon listens on {} (left over from one that ended?). {}", path,
                       HowToStart(path));
  }
  if (error == EACCES || error == EPERM) {
    return fmt::format(
        "permission denied: socket {} refuses uid {}. Run as a user of that domain, such as a "
        "member of the socket's group, or ask its owner for access",
        path, getuid());
  }
  return fmt::format("cannot connect to {}: {}", path, std::strerror(error));
}

std::string DefaultSocketPath() {
  if (const char* named = std::getenv("TERRACE_SOCKET"); named != nullptr && *named != '\0') {
    return named;
  }
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr || *runtime == '\0') return kSystemSocket;
  // Where this user may not look it is another's, left over from before a su.
  std::string own = std::string(runtime) + "/terrace/default.sock";
  return Exists(own) || !MayExist(kSystemSocket) ? own : kSystemSocket;
}

std::string DaemonAddress::path() const {
  return socket_path.empty() ? DefaultSocketPath() : socket_path;
}

void DeclareAddress(Arguments& verb, DaemonAddress* address) {
  verb.AddOption("--socket", address->socket_path,
                 "The domain's socket (default: $TERRACE_SOCKET, else "
                 "$XDG_RUNTIME_DIR/terrace/default.sock or /run/terrace/default.sock)")
      .Type("PATH");
  verb.AddOption("--timeout-ms", address->timeout_ms, "How long to wait for each answer")
      .Type("MS")
      .ShowDefault()
      .Between(uint32_t{1}, kTimeoutMsMax);
}

void DeclareJson(Arguments& verb, bool* is_json) {
  verb.AddFlag("--json", *is_json, "Print one JSON document");
}

std::unique_ptr<Client> ConnectOrExplain(const DaemonAddress& address) {
  const std::string path = address.path();
  ClientOptions options;
  options.socket_path = path;
  options.client_name = "terrace";
  std::string why;
  Result<std::unique_ptr<Client>> client = Client::Create(options, &why);
  if (!client.ok()) {
    const std::string reason = WhyNobodyListens(path);
    Fail(reason.empty() ? fmt::format("cannot use socket {}: {}", path, why) : reason);
    return nullptr;
  }
  // A daemon that is there answers in well under this; for one that is not, the reason is looked up
  // instead of waiting on.
  constexpr uint64_t kPromptAnswerUs = 100'000;
  const uint64_t prompt_us = std::min(kPromptAnswerUs, address.deadline_us());
  Status status = (*client)->WaitConnected(prompt_us);
  if (status.ok()) return std::move(*client);
  if (why = WhyNobodyListens(path); !why.empty()) {
    Fail(why);
    return nullptr;
  }
  if (status.code() == StatusCode::kBusy && address.deadline_us() > prompt_us) {
    status = (*client)->WaitConnected(address.deadline_us() - prompt_us);
    if (status.ok()) return std::move(*client);
  }
  std::string words = (*client)->last_error();
  if (words.empty()) words = DescribeStatus(status);
  if (IsRefused(status, words)) {
    Fail(words);
    return nullptr;
  }
  Fail(fmt::format(
      "no handshake with the daemon on {} within {} ms: {}. If it is starting or hung, see "
      "its log (`journalctl -u terraced`) or raise --timeout-ms",
      path, address.timeout_ms, words));
  return nullptr;
}

std::string DescribeStatus(Status status) {
  std::string words(StatusCodeName(status.code()));
  if (*status.what() != '\0') words += fmt::format(" ({})", status.what());
  if (status.code() == StatusCode::kIo && status.detail() != 0) {
    words += fmt::format(": {}", std::strerror(status.detail()));
  }
  return words;
}

ExitCode Fail(std::string_view message) {
  std::fflush(stdout);
  fmt::print(stderr, "terrace: {}\n", PrintableText(WithShortWords(message)));
  return kExitFailed;
}

ExitCode FailRequest(const Client& client, std::string_view what, Status status) {
  std::string words = client.last_error();
  return Fail(
      fmt::format("{}: {}{}{}", what, DescribeStatus(status), words.empty() ? "" : ": ", words));
}

void PrintText(std::string_view text) {
  const std::string shown = PrintableText(text, LineFeeds::kKept);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

void HoldStandardStreams() {
  for (int fd = 0; fd <= STDERR_FILENO;) {
    if (fd = open("/dev/null", O_RDONLY | O_CLOEXEC); fd < 0) return;
    if (fd > STDERR_FILENO) close(fd);
  }
}

ExitCode FinishOutput(std::FILE* out, ExitCode exit_code) {
  const bool was_lost = std::ferror(out) != 0;
  const bool is_lost = std::fflush(out) != 0;
  if (!was_lost && !is_lost) return exit_code;
  const std::string why = is_lost ? std::strerror(errno) : "it is closed, or its disk is full";
  Fail(fmt::format(
      "standard output did not take all of the answer: {}. Free its disk or name another file",
      why));
  return exit_code == kExitOk ? kExitFailed : exit_code;
}

void PrintJson(const nlohmann::json& document) {
  constexpr int kIndent = 2;
  const std::string text = JsonText(document, kIndent) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace terrace::tools
