#include "daemon/handover/supervisor.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace terrace {

SupervisorAddress SupervisorAddressOf(std::string_view path) {
  SupervisorAddress result;
  sockaddr_un& address = result.address;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return result;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = 0;
  result.byte_count = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return result;
}

bool TellSupervisor(std::string_view states) {
  const char* const text = std::getenv("NOTIFY_SOCKET");
  const SupervisorAddress to = SupervisorAddressOf(text == nullptr ? "" : text);
  if (to.byte_count == 0) return true;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const ssize_t sent = sendto(fd, states.data(), states.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&to.address), to.byte_count);
  const bool is_full = sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR);
  close(fd);
  return !is_full;
}

}  // namespace terrace
