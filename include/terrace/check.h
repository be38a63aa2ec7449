// TERRACE_CHECK: an invariant that holds in every build, release included. A daemon that has lost
// an invariant may serve wrong bytes, so it stops; the cache is rebuilt from what can be verified.
//
// Never in client/: the library lives inside an engine and must not abort it. There a broken
// expectation is a Status.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace terrace::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expression,
                                     const char* reason) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, expression, reason);
  std::fflush(stderr);
  std::abort();
}

}  // namespace terrace::internal

// `reason` is a string literal that says why the condition must hold.
#define TERRACE_CHECK(condition, reason)                                          \
  do {                                                                            \
    if (!(condition)) [[unlikely]] {                                              \
      ::terrace::internal::CheckFailed(__FILE__, __LINE__, #condition, (reason)); \
    }                                                                             \
  } while (false)
