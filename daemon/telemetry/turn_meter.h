// TurnMeter: how long a turn of the store thread took, and how much of that the thread only waited
// for: a processor that others had, or a page. A slow turn that mostly waited is the host's doing.
//
// The kernel is asked for the thread's processor time at most once in kSampleUs and at the end of
// slow turns, so that a turn of a few microseconds costs no system call more. What the thread did
// between the last sample and the turn's begin counts as the turn's: `waited_us` is too low by
// kSampleUs at most, never too high.
//
// THREADING: store thread.
#pragma once

#include <cstdint>
#include <functional>

namespace terrace {

struct TurnCost {
  uint64_t took_us = 0;
  uint64_t waited_us = 0;  // at least; known of slow turns only
};

class TurnMeter {
 public:
  static constexpr uint64_t kSampleUs = 1'000;

  // `processor_us`: the store thread's processor time, from any beginning. Turns longer than
  // `slow_us` are slow.
  TurnMeter(std::function<uint64_t()> processor_us, uint64_t slow_us);

  // `now_us`: a clock that never goes back.
  void Begin(uint64_t now_us);
  TurnCost End(uint64_t began_us, uint64_t now_us);

 private:
  void Sample(uint64_t now_us, uint64_t processor_us);

  std::function<uint64_t()> processor_us_;
  uint64_t slow_us_;
  uint64_t sampled_us_ = 0;
  uint64_t sampled_processor_us_ = 0;
  bool is_sampled_ = false;
};

}  // namespace terrace
