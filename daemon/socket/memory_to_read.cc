#include "daemon/socket/memory_to_read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "terrace/open_file.h"

namespace terrace {
namespace {

constexpr mode_t kOthers = 0077;

// Whoever owns a file, or whom its mode lets, would open it to write by its path below /proc. A
// predecessor may have been of another user, or have left the mode as memfds have it.
bool IsClosedToOthers(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return false;
  if (about.st_uid != geteuid()) {
    errno = EPERM;
    return false;
  }
  return (about.st_mode & kOthers) == 0 || fchmod(fd, 0600) == 0;
}

}  // namespace

// The path is the process's own: neither a sandbox that leaves reading alone nor a /proc that hides
// other processes refuses it.
int OpenToRead(int memory_fd) {
  if (!IsClosedToOthers(memory_fd)) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(memory_fd);
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
}

bool CanBeOpenedToRead(std::span<const int> memory_fds, std::string* why) {
  for (const int memory : memory_fds) {
    const OpenFile opened(OpenToRead(memory));
    if (opened.fd() >= 0) continue;
    const int error = errno;
    *why =
        "its memory cannot be opened for reading alone, as writer_uids wants for readers: "
        "/proc/self/fd/" +
        std::to_string(memory) + ": " + std::strerror(error);
    *why += error == ENOENT ? "; mount /proc where terraced runs, or leave writer_uids out"
                            : "; a memory file of another user is given up by a stop of the daemon "
                              "and of its keeper, and made anew at the next start";
    return false;
  }
  return true;
}

}  // namespace terrace
