// SharedQuestion: what several ask of the store thread is asked once. No two questions are under
// way, and none is asked sooner than a pace after the one before, so that however many ask, and how
// often, the store thread does not feel it. Nobody is told what was found before it asked.
//
// THREADING: the thread that runs `loop`.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace terrace {

class SharedQuestion {
 public:
  using Clock = std::chrono::steady_clock;
  // Has the store thread find out; `done` is called on the loop's thread, or never.
  using Asker = std::function<void(std::function<void()> done)>;
  // False: there was no answer in time.
  using Told = std::function<void(bool is_answered)>;

  SharedQuestion(asio::io_context& loop, std::chrono::milliseconds pace,
                 std::chrono::milliseconds patience)
      : pace_(pace), patience_(patience), next_(loop), late_(loop) {}

  void SetAsker(Asker asker) { asker_ = std::move(asker); }
  void Ask(Told told);

 private:
  struct Waiter {
    uint64_t question = 0;
    Clock::time_point due;
    Told told;
  };

  void AskWhenPaced();
  void OnDone();
  void ArmLate();
  void TellFirst(bool is_answered);

  const std::chrono::milliseconds pace_, patience_;
  asio::steady_timer next_, late_;
  Asker asker_;
  std::deque<Waiter> waiters_;  // in the order they came
  uint64_t asked_count_ = 0;    // the last one has this number
  Clock::time_point asked_at_{};
  bool is_out_ = false;    // a question is with the store thread
  bool is_armed_ = false;  // next_ will go off
};

}  // namespace terrace
