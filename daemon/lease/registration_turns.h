// RegistrationTurns: which session may register host memory with its device now. Registering takes
// a lock of the driver that every process of the machine waits for, so one does it at a time.
// Nothing relies on it: no byte is wrong if two do it at once. That is why a turn may be taken away
// on a timer, which no slot ever may.
//
// THREADING: one thread. LIMITS: one place a session.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "daemon/block/block.h"

namespace terrace {

// A segment of 256 MiB takes some 25 ms, and ten times that where pages are small and memory short.
inline constexpr uint64_t kRegistrationTurnUs = 2'000'000;

class RegistrationTurns {
 public:
  // Sessions ahead of this one, the holder included. Asked again, it keeps its place.
  uint32_t Ask(uint64_t session) {
    if (session == holder_) return 0;
    const auto place = std::find(waiting_.begin(), waiting_.end(), session);
    const auto ahead = static_cast<uint32_t>(place - waiting_.begin());
    if (place == waiting_.end()) waiting_.push_back(session);
    return ahead + (holder_ != 0 ? 1 : 0);
  }
  // False if it neither has the turn nor waits for it.
  bool End(uint64_t session) {
    if (session == holder_) {
      holder_ = 0;
      return true;
    }
    return std::erase(waiting_, session) > 0;
  }
  // The session whose turn begins now; 0: nobody's. Call after Ask, after End, and at next_us().
  uint64_t Next(uint64_t now_us) {
    if (waiting_.empty() || (holder_ != 0 && now_us < began_us_ + kRegistrationTurnUs)) return 0;
    if (holder_ != 0) ++taken_away_count_;
    holder_ = waiting_.front();
    waiting_.pop_front();
    began_us_ = now_us;
    return holder_;
  }
  // A turn that nobody waits for has no end.
  uint64_t next_us() const {
    return holder_ != 0 && !waiting_.empty() ? began_us_ + kRegistrationTurnUs : kNever;
  }
  uint64_t holder() const { return holder_; }
  uint64_t taken_away_count() const { return taken_away_count_; }

 private:
  std::deque<uint64_t> waiting_;
  uint64_t holder_ = 0;
  uint64_t began_us_ = 0;
  uint64_t taken_away_count_ = 0;
};

}  // namespace terrace
