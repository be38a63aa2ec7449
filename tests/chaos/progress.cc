#include "chaos/progress.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

namespace terrace::chaos {

Progress* MapProgress(const std::string& path) {
  int fd = -1;
  int map_flags = MAP_SHARED | MAP_ANONYMOUS;
  if (!path.empty()) {
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Progress)) != 0) {
      std::fprintf(stderr, "terrace-chaos: progress file %s: %s\n", path.c_str(),
                   std::strerror(errno));
      return nullptr;
    }
    map_flags = MAP_SHARED;
  }
  void* memory = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, map_flags, fd, 0);
  if (fd >= 0) close(fd);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "terrace-chaos: progress page: %s\n", std::strerror(errno));
    return nullptr;
  }
  return new (memory) Progress{};
}

}  // namespace terrace::chaos
