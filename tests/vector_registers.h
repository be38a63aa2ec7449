// What this CPU says of a thread's vector registers (terrace/vector_state.h): XGETBV with ECX = 1.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace terrace::test {

// Upper halves of registers 0 to 15: bits 128 to 255 (2) and 256 to 511 (6). Masks (5) and
// registers 16 to 31 (7) stay in use and do no harm.
inline constexpr uint32_t kUpperHalves = 1u << 2 | 1u << 6;

#if defined(__x86_64__)

inline bool TellsVectorState() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return false;
  return __get_cpuid_count(0xD, 1, &a, &b, &c, &d) != 0 && (a & 1u << 2) != 0;
}

// REQUIRES: TellsVectorState().
inline uint32_t UpperHalvesInUse() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1) : "memory");
  return low & kUpperHalves;
}

// Leaves them in use, as wide as the CPU has them. False if it has none.
inline bool UseUpperHalves() {
  if (__builtin_cpu_supports("avx512f")) {
    asm volatile("vpternlogd $0xff, %%zmm0, %%zmm0, %%zmm0" : : : "xmm0");
    return true;
  }
  if (!__builtin_cpu_supports("avx")) return false;
  asm volatile("vcmptrueps %%ymm0, %%ymm0, %%ymm0" : : : "xmm0");
  return true;
}

inline void EmptyUpperHalves() {
  if (__builtin_cpu_supports("avx")) asm volatile("vzeroupper" : : : "memory");
}

#else

inline bool TellsVectorState() { return false; }
inline uint32_t UpperHalvesInUse() { return 0; }
inline bool UseUpperHalves() { return false; }
inline void EmptyUpperHalves() {}

#endif

inline constexpr char kNoVectorState[] =
    "NOT TESTED: this CPU does not tell which vector registers are in use (XGETBV with ECX = 1)";

// What are left in use by `call`.
template <typename Call>
uint32_t LeftInUse(const Call& call) {
  EmptyUpperHalves();
  call();
  const uint32_t left = UpperHalvesInUse();
  EmptyUpperHalves();
  return left;
}

}  // namespace terrace::test
