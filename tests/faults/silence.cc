// A library to preload: a name server and a file server that are there and do not answer. Names of
// hosts that end in ".silent" are never resolved, and a file F is never opened while there is a
// file F.silent; all others as ever. And a drive that fails once: where there is a file F.fails,
// the next read of F's first bytes does, and F.fails goes.
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string>

#define TERRACE_PRELOADED extern "C" __attribute__((visibility("default")))

TERRACE_PRELOADED int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                                  addrinfo** found) {
  constexpr char kSilent[] = ".silent";
  constexpr size_t kSilentBytes = sizeof(kSilent) - 1;
  const size_t host_bytes = host == nullptr ? 0 : std::strlen(host);
  while (host_bytes > kSilentBytes && std::strcmp(host + host_bytes - kSilentBytes, kSilent) == 0) {
    pause();
  }
  const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, hints, found);
}

TERRACE_PRELOADED int open(const char* path, int flags, ...) {
  const std::string silent = std::string(path) + ".silent";
  while (access(silent.c_str(), F_OK) == 0) pause();
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const auto real = reinterpret_cast<decltype(&open)>(dlsym(RTLD_NEXT, "open"));
  return real(path, flags, mode);
}

TERRACE_PRELOADED ssize_t pread(int fd, void* into, size_t length_bytes, off_t offset_bytes) {
  if (offset_bytes == 0) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t path_bytes = readlink(link.c_str(), path.data(), path.size());
    const std::string file(path.data(), path_bytes < 0 ? 0 : static_cast<size_t>(path_bytes));
    if (unlink((file + ".fails").c_str()) == 0) {
      errno = EIO;
      return -1;
    }
  }
  const auto real = reinterpret_cast<decltype(&pread)>(dlsym(RTLD_NEXT, "pread"));
  return real(fd, into, length_bytes, offset_bytes);
}
