#include "tools/terrace/doctor/redis_probe.h"

#include <fmt/core.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "tiers/redis/wire/redis_endpoint.h"

namespace terrace::tools {
namespace {

// Empty once `events` are there.
std::string Await(int fd, short events, uint32_t timeout_ms) {
  pollfd waited{.fd = fd, .events = events, .revents = 0};
  const int ready = poll(&waited, 1, static_cast<int>(timeout_ms));
  if (ready > 0) return "";
  return ready == 0 ? fmt::format("no answer within {} ms", timeout_ms) : std::strerror(errno);
}

// A socket that does not block, connected in time; else -1 with `*why`.
int Connect(const sockaddr* address, socklen_t address_bytes, uint32_t timeout_ms,
            std::string* why) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int error = fd < 0 ? errno : 0;
  if (error == 0 && connect(fd, address, address_bytes) != 0) error = errno;
  if (error == EINPROGRESS) {
    error = 0;
    *why = Await(fd, POLLOUT, timeout_ms);
    socklen_t size_bytes = sizeof(error);
    if (why->empty()) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size_bytes);
  }
  if (error != 0) *why = std::strerror(error);
  if (why->empty()) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

int Connect(const RedisEndpoint& endpoint, uint32_t timeout_ms, std::string* why) {
  if (!endpoint.unix_path.empty()) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    if (endpoint.unix_path.size() >= sizeof(address.sun_path)) {
      *why = fmt::format("its path has {} bytes, the limit is {}", endpoint.unix_path.size(),
                         sizeof(address.sun_path) - 1);
      return -1;
    }
    endpoint.unix_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return Connect(reinterpret_cast<const sockaddr*>(&address), sizeof(address), timeout_ms, why);
  }
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    *why = fmt::format("its name is not resolved: {}", gai_strerror(error));
    return -1;
  }
  int fd = -1;
  for (const addrinfo* one = found; one != nullptr && fd < 0; one = one->ai_next) {
    why->clear();
    fd = Connect(one->ai_addr, one->ai_addrlen, timeout_ms, why);
  }
  freeaddrinfo(found);
  return fd;
}

// "+PONG", or an error reply of a server that wants a login.
std::string Ping(int fd, uint32_t timeout_ms) {
  constexpr std::string_view kPing = "PING\r\n";
  if (send(fd, kPing.data(), kPing.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kPing.size())) {
    return std::strerror(errno);
  }
  if (std::string why = Await(fd, POLLIN, timeout_ms); !why.empty()) return why;
  std::array<char, 128> answer{};
  const ssize_t got = recv(fd, answer.data(), answer.size(), 0);
  if (got <= 0) return got == 0 ? "it closed the connection" : std::strerror(errno);
  const std::string_view text(answer.data(), static_cast<size_t>(got));
  if (text.starts_with("+PONG") || text.starts_with("-NOAUTH")) return "";
  return fmt::format("it answers '{}' to PING", text.substr(0, text.find('\r')));
}

}  // namespace

std::string ProbeRedis(const std::string& endpoint, uint32_t timeout_ms, bool is_tls) {
  std::string why;
  const Result<RedisEndpoint> parsed = ParseRedisEndpoint(endpoint, &why);
  if (!parsed.ok()) return why;
  const int fd = Connect(*parsed, timeout_ms, &why);
  if (fd < 0) return why;
  if (!is_tls) why = Ping(fd, timeout_ms);
  close(fd);
  return why;
}

}  // namespace terrace::tools
