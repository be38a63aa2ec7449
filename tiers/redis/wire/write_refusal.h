// WriteRefusal: a server that answers and takes no writes (it is full, a replica, or cannot save).
// It is given none for a while after each that it refused, and is asked now and then whether it
// takes them again, though nobody has anything to write.
//
// Pure.
#pragma once

#include <cstdint>

#include "terrace/units.h"
#include "tiers/redis/wire/redis_error.h"

namespace terrace {

class WriteRefusal {
 public:
  static constexpr uint64_t kPauseUs = kUsPerSecond;
  static constexpr uint64_t kLookUs = 5 * kUsPerSecond;

  // REQUIRES: IsWriteRefusal(error).
  void OnRefused(RedisError error, uint32_t slot, uint64_t now_us) {
    error_ = error;
    slot_ = slot;
    asked_us_ = now_us;
    paused_until_us_ = now_us + kPauseUs;
  }
  void OnTaken() {
    error_ = RedisError::kNone;
    paused_until_us_ = 0;
  }

  // Why it refused the last write; kNone: it took it.
  RedisError error() const { return error_; }
  uint32_t slot() const { return slot_; }  // of that write's keys
  bool IsPaused(uint64_t now_us) const { return now_us < paused_until_us_; }
  // True: the server is to be asked now. Of what scripts may not do a look says nothing: the next
  // write does.
  bool TakeLook(uint64_t now_us) {
    if (error_ == RedisError::kNone || error_ == RedisError::kNoPermissionInScript ||
        now_us - asked_us_ < kLookUs) {
      return false;
    }
    asked_us_ = now_us;
    return true;
  }

 private:
  RedisError error_ = RedisError::kNone;
  uint32_t slot_ = 0;
  uint64_t asked_us_ = 0;
  uint64_t paused_until_us_ = 0;
};

}  // namespace terrace
