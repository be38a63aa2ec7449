#pragma once

#include <cstdint>
#include <cstdlib>

namespace terrace::test {

// Of a test's millions of cases or steps each Stride()th is run: 1, all of them, unless
// TERRACE_TEST_STRIDE says more, as it does under valgrind, where a step takes a hundred times as
// long. A prime meets each value of each dimension of a matrix.
inline uint64_t Stride() {
  static const uint64_t stride = [] {
    const char* asked = std::getenv("TERRACE_TEST_STRIDE");
    const uint64_t given = asked == nullptr ? 1 : std::strtoull(asked, nullptr, 10);
    return given == 0 ? 1 : given;
  }();
  return stride;
}

}  // namespace terrace::test
