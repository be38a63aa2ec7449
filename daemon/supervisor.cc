#include "daemon/supervisor.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace terrace {

bool TellSupervisor(std::string_view states) {
  const char* const text = std::getenv("NOTIFY_SOCKET");
  const std::string_view path = text == nullptr ? "" : text;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return true;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = 0;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const ssize_t sent = sendto(fd, states.data(), states.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), address_bytes);
  const bool is_full = sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR);
  close(fd);
  return !is_full;
}

}  // namespace terrace
