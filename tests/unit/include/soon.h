// What other threads than the test's own bring about.
#pragma once

#include <chrono>
#include <thread>

namespace terrace {

// Within half a minute.
template <typename Holds>
bool Soon(const Holds& holds) {
  for (int i = 0; i < 30'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace terrace
