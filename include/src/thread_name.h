// Names of threads, as `top -H` shows them: 15 characters at most; and how threads wake up. One is
// born with the name of the one that makes it. Only it can change that in a daemon that has given
// up /proc, where pthread_setname_np(3) writes the names of others.
#pragma once

#include <array>
#include <cstdint>
#include <thread>
#include <utility>

namespace terrace {

// What a thread does, when it wakes up, to who runs on that processor.
enum class Waking : uint8_t {
  kAsUsual,
  kPatient,  // waits until that one waits or has had its time: SCHED_BATCH of sched(7)
};

// Threads that the calling one makes during this object's life have that name and way of waking; it
// has its own again afterwards.
class BornAs {
 public:
  explicit BornAs(const char* name, Waking waking = Waking::kAsUsual);
  ~BornAs();
  BornAs(const BornAs&) = delete;
  BornAs& operator=(const BornAs&) = delete;

 private:
  std::array<char, 16> own_{};
  bool is_patient_ = false;
};

template <typename Body>
std::thread StartThread(const char* name, Body&& body, Waking waking = Waking::kAsUsual) {
  const BornAs born(name, waking);
  return std::thread(std::forward<Body>(body));
}

}  // namespace terrace
