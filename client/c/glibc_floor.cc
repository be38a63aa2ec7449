// What keeps libterrace loadable by an older C library than it is built on. libstdc++.a takes
// std::random_device from arc4random, which glibc has from 2.36 on, and comes along whole; nothing
// of Terrace's uses it here. Not seen from outside.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}
