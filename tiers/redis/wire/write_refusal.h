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
  // A full server takes what is small, and refuses what is not: where a refusal comes so soon after
  // the end of one, it ends with the first write that is taken so long after the last refusal.
  static constexpr uint64_t kSettleUs = 10 * kUsPerSecond;

  // REQUIRES: IsWriteRefusal(error).
  void OnRefused(RedisError error, uint32_t slot, uint64_t now_us) {
    if (error_ == RedisError::kNone)
      is_on_and_off_ = ended_us_ != 0 && now_us - ended_us_ < kSettleUs;
    error_ = error;
    slot_ = slot;
    asked_us_ = refused_us_ = now_us;
    paused_until_us_ = now_us + kPauseUs;
  }
  void OnTaken(uint64_t now_us) {
    if (error_ == RedisError::kNone || (is_on_and_off_ && now_us - refused_us_ < kSettleUs)) return;
    error_ = RedisError::kNone;
    ended_us_ = now_us;
    paused_until_us_ = 0;
  }
  // Of a rise, of which a full server takes those that it can.
  void OnRiseRefused(uint64_t now_us) { rise_at_us_ = now_us + kPauseUs; }
  void OnRiseTaken() { rise_at_us_ = 0; }
  // True: one is to be tried. Where the last one was refused, once in a while.
  bool TakeRise(uint64_t now_us) {
    if (now_us < rise_at_us_) return false;
    if (rise_at_us_ != 0) rise_at_us_ = now_us + kPauseUs;
    return true;
  }

  // Why it refuses writes; kNone: it takes them, as far as is known.
  RedisError error() const { return error_; }
  uint32_t slot() const { return slot_; }  // of that write's keys
  bool IsPaused(uint64_t now_us) const { return now_us < paused_until_us_; }
  // True: the server is to be asked now. Of what scripts may not do a look says nothing: the next
  // write does.
  bool TakeLook(uint64_t now_us) {
    if (error_ == RedisError::kNone || IsWriteDenial(error_) || now_us - asked_us_ < kLookUs) {
      return false;
    }
    asked_us_ = now_us;
    return true;
  }

 private:
  RedisError error_ = RedisError::kNone;
  uint32_t slot_ = 0;
  uint64_t asked_us_ = 0, refused_us_ = 0, ended_us_ = 0;
  bool is_on_and_off_ = false;
  uint64_t rise_at_us_ = 0;  // the next one; 0: none was refused
  uint64_t paused_until_us_ = 0;
};

}  // namespace terrace
