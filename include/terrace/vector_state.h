// The state in which a thread's vector registers are handed back to whoever called us.
//
// Code that used AVX or AVX-512 must clear the upper halves of vector registers 0 to 15 before it
// returns. While they are in use, Intel's CPUs since Skylake make each legacy-SSE instruction of
// the thread wait for the upper half of its target and merge with it, and AMD's Zen 3 takes some
// 60 ns for each change between legacy SSE and VEX: a loop of expf takes 50 times as long on the
// one and 30 times on the other, until something happens to clear them. Compilers do it where a
// function ends, but g++ does not below -O2, and g++ 12.2 does not behind a call of a local
// function that leaves vector registers alone. So whoever calls vector code that he cannot see into
// does it behind the call.
#pragma once

namespace terrace {

#if defined(__x86_64__)

// Which compilers hold nothing in vector registers across: they are the callee's by the ABI, too.
#define TERRACE_VECTOR_REGISTERS                                                           \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// Clears the upper halves where there are any, in a nanosecond. Nothing that reads or writes memory
// is moved across it.
inline void ClearUpperHalves() {
  if (__builtin_cpu_supports("avx")) {
    asm volatile("vzeroupper" : : : "memory", TERRACE_VECTOR_REGISTERS);
  }
}

// The same behind a call that gave `answer`, in its order for certain: a compiler that knows the
// call to have no effects but its answer may not put it off until after this.
template <typename Integer>
Integer ClearUpperHalvesBehind(Integer answer) {
  if (__builtin_cpu_supports("avx")) {
    asm volatile("vzeroupper" : "+r"(answer) : : "memory", TERRACE_VECTOR_REGISTERS);
  }
  return answer;
}

#undef TERRACE_VECTOR_REGISTERS

#else

inline void ClearUpperHalves() {}

template <typename Integer>
Integer ClearUpperHalvesBehind(Integer answer) {
  return answer;
}

#endif

}  // namespace terrace
