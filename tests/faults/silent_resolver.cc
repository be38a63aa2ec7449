// A library to preload: a name server that is there and does not answer. Names that end in
// ".silent" are never resolved; all others as ever.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <cstring>

extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* host,
                                                                  const char* service,
                                                                  const addrinfo* hints,
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
