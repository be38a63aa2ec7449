// Names of threads, as `top -H` shows them: 15 characters at most. A thread is born with the name
// of the one that makes it. Only it can change that in a daemon that has given up /proc, where
// pthread_setname_np(3) writes the names of others.
#pragma once

#include <array>
#include <thread>
#include <utility>

namespace terrace {

// Threads that the calling one makes during this object's life have that name; it has its own again
// afterwards.
class BornAs {
 public:
  explicit BornAs(const char* name);
  ~BornAs();
  BornAs(const BornAs&) = delete;
  BornAs& operator=(const BornAs&) = delete;

 private:
  std::array<char, 16> own_{};
};

template <typename Body>
std::thread StartThread(const char* name, Body&& body) {
  const BornAs born(name);
  return std::thread(std::forward<Body>(body));
}

}  // namespace terrace
