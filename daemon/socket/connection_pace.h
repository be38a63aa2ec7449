// ConnectionPace: how fast each user may connect. A connection costs the store thread some twenty
// microseconds, a session that comes and goes four times that: behind who connects in a loop every
// second request of the others would wait.
//
// LIMITS: kBurst connections at once, one a kPaceUs after that. Of kUsersMax users those who have
// paid are forgotten, once a kPaceUs.
// THREADING: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace terrace {

class ConnectionPace {
 public:
  static constexpr uint64_t kBurst = 128;
  static constexpr uint64_t kPaceUs = 40'000;
  static constexpr size_t kUsersMax = 1024;

  // True: a connection of the user may come in at this time, and is counted.
  bool Take(uint32_t uid, uint64_t now_us) {
    if (paid_until_us_.size() >= kUsersMax && now_us >= swept_us_ + kPaceUs) {
      swept_us_ = now_us;
      std::erase_if(paid_until_us_, [now_us](const auto& user) { return user.second <= now_us; });
    }
    uint64_t& paid_until_us = paid_until_us_[uid];
    const uint64_t from_us = std::max(paid_until_us, now_us);
    if (from_us - now_us > (kBurst - 1) * kPaceUs) return false;
    paid_until_us = from_us + kPaceUs;
    return true;
  }

  size_t user_count() const { return paid_until_us_.size(); }

 private:
  uint64_t swept_us_ = 0;
  std::unordered_map<uint32_t, uint64_t> paid_until_us_;  // each connection pays for a kPaceUs
};

}  // namespace terrace
