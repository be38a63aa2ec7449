#include "fuzz/descriptors.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"

namespace terrace::fuzz {

uint32_t OpenFdCount() {
  constexpr int kFdsLookedAt = 128;
  uint32_t count = 0;
  for (int fd = 0; fd < kFdsLookedAt; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

int MakeFd(FdKind kind, uint64_t byte_count) {
  int ends[2] = {-1, -1};
  switch (kind) {
    case FdKind::kEvent:
      return eventfd(0, EFD_CLOEXEC);
    case FdKind::kSocket:
      Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
      close(ends[1]);
      return ends[0];
    case FdKind::kDevice:
      return open("/dev/null", O_RDWR | O_CLOEXEC);
    case FdKind::kMemory:
    case FdKind::kSealedMemory:
      break;
  }
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  Require(fd >= 0 && ftruncate(fd, static_cast<off_t>(byte_count)) == 0 &&
              (kind == FdKind::kMemory || fcntl(fd, F_ADD_SEALS, kSeals) == 0),
          "no memory file");
  return fd;
}

std::string PathInNoFolder(std::string_view name) {
  return std::string(1, '\0') + "terrace-fuzz-" + std::string(name) + std::to_string(getpid());
}

sockaddr_un AddressOf(std::string_view path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path));
  return address;
}

int ListenAt(std::string_view path, int socket_type) {
  const sockaddr_un address = AddressOf(path);
  const int fd = socket(AF_UNIX, socket_type | SOCK_CLOEXEC, 0);
  Require(fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
              listen(fd, 64) == 0,
          "nobody can listen");
  return fd;
}

int ConnectTo(std::string_view path, int socket_type) {
  const sockaddr_un address = AddressOf(path);
  const int fd = socket(AF_UNIX, socket_type | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int why = errno;
  close(fd);
  errno = why;
  return -1;
}

bool SendWithFds(int socket_fd, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  std::vector<std::byte> control(CMSG_SPACE(fds.size_bytes()));
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  return sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

void ReadToEnd(int socket_fd) {
  char heard[4096];
  while (recv(socket_fd, heard, sizeof(heard), 0) > 0) {
  }
}

}  // namespace terrace::fuzz
