#include "tiers/redis/wire/redis_endpoint.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "src/masked_address.h"
#include "terrace/secret_mode.h"

namespace terrace {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
// Of a host; whoever writes one of these means a URL, a login or options.
constexpr std::string_view kNeverOfAnAddress = "[]@/?#,; \t\r\n";
constexpr std::string_view kNeverOfAName = "[]:@/?#,; \t\r\n";
constexpr const char* kLoginRemedy =
    "; a user and a password are written into a file that redis.credentials_file names";
constexpr size_t kCredentialsBytesMax = 4096;

std::string Quoted(const std::string& text) {
  std::string quoted(1, '\'');
  quoted += text;
  return quoted += '\'';
}

bool IsFitForASecret(const std::string& path, const struct stat& about) {
  return S_ISREG(about.st_mode) && (about.st_mode & ForbiddenModeBits(path)) == 0 &&
         (about.st_uid == 0 || about.st_uid == geteuid());
}

// Takes the first line away from `text`.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Status ParseCredentials(std::string_view text, RedisCredentials* credentials) {
  const Status refused(StatusCode::kInvalid, "no Redis password file");
  const std::string_view first = TakeLine(&text);
  const std::string_view second = TakeLine(&text);
  if (!text.empty() || first.empty()) return refused;
  credentials->user = second.empty() ? std::string_view() : first;
  credentials->password = second.empty() ? first : second;
  return Status::Ok();
}

}  // namespace

std::string ToText(const RedisEndpoint& endpoint) {
  if (!endpoint.unix_path.empty()) return std::string(kUnixPrefix) + endpoint.unix_path;
  const bool is_v6 = endpoint.host.find(':') != std::string::npos;
  std::string text = is_v6 ? "[" : "";
  text += endpoint.host;
  text += is_v6 ? "]:" : ":";
  text += std::to_string(endpoint.port);
  return text;
}

Result<RedisEndpoint> ParseRedisEndpoint(const std::string& text, std::string* why) {
  const Status refused(StatusCode::kInvalid, "not the address of a Redis server");
  RedisEndpoint endpoint;
  if (text.starts_with(kUnixPrefix)) {
    endpoint.unix_path = text.substr(kUnixPrefix.size());
    const bool is_url = endpoint.unix_path.starts_with("//") && text.find('@') != text.npos;
    if (endpoint.unix_path.starts_with('/') && !is_url &&
        endpoint.unix_path.size() < sizeof(sockaddr_un::sun_path)) {
      return endpoint;
    }
    // A path may have an '@' of its own.
    *why = Quoted(is_url ? MaskedAddress(text) : text) +
           ": a socket's path begins with / and has at most " +
           std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes";
    if (is_url) *why += kLoginRemedy;
    return refused;
  }
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos && colon > 0) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, endpoint.port);
    endpoint.host = text.substr(0, colon);
    const bool is_bracketed = endpoint.host.starts_with('[') && endpoint.host.ends_with(']');
    if (is_bracketed) endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
    const std::string_view never = is_bracketed ? kNeverOfAnAddress : kNeverOfAName;
    const bool is_host = !endpoint.host.empty() && endpoint.host.find_first_of(never) == text.npos;
    if (error == std::errc() && stop == end && endpoint.port != 0 && is_host) return endpoint;
  }
  *why = Quoted(MaskedAddress(text)) +
         " is no address: write host:port, [v6 address]:port or unix:/path";
  if (text.find_first_of("@?,/") != text.npos) *why += kLoginRemedy;
  return refused;
}

void WipeText(std::string* text) {
  explicit_bzero(text->data(), text->size());
  text->clear();
}

RedisCredentials::~RedisCredentials() {
  WipeText(&user);
  WipeText(&password);
}

Status ReadRedisCredentials(const std::string& path, RedisCredentials* credentials,
                            std::string* why) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    *why = path + ": cannot be opened: " + strerror(error);
    if (error == EACCES) *why += kUnreadableRemedy;
    return error == ENOENT ? Status(StatusCode::kNotFound, "no such file")
                           : Status(StatusCode::kIo, "a password file cannot be opened", error);
  }
  struct stat about {};
  std::array<char, kCredentialsBytesMax> bytes;
  ssize_t count = -1;
  const bool is_fit = fstat(fd, &about) == 0 && IsFitForASecret(path, about);
  if (is_fit) count = read(fd, bytes.data(), bytes.size());
  close(fd);
  if (!is_fit) {
    *why = path + ": others may read it; make it a file of the daemon's user with mode 0600";
    return Status(StatusCode::kInvalid, "a password file that others may read");
  }
  Status status(StatusCode::kInvalid, "no Redis password file");
  if (count > 0 && static_cast<size_t>(count) < bytes.size()) {
    status = ParseCredentials({bytes.data(), static_cast<size_t>(count)}, credentials);
  }
  explicit_bzero(bytes.data(), bytes.size());
  if (!status.ok()) {
    *why = path + ": write one line, the password, or two lines, the user and the password";
  }
  return status;
}

}  // namespace terrace
