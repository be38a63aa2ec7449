// SegmentPinner: the thread on which segments of the arena are registered with a device, so that
// the device's own copies reach them, and taken out before they are unmapped. Both take long and
// stop other users of the driver, so they are done one segment at a time, and a segment is
// registered when the daemon says that it is this process's turn. Nothing is wrong without a turn,
// only slower for everybody: who has waited turn_wait_us for one goes on without.
//
// What a segment is only its Attachment knows, which gives the work as jobs.
//
// THREADING: any thread; jobs and hooks are called on the pinner's, without its lock.
// OWNERSHIP: shared by the ArenaPins that started it and the attachments it serves.
// INVARIANT: while paused nothing is registered, nor taken out before Stop.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/host/host_pins.h"
#include "terrace/status.h"

namespace terrace::client {

// When a pinner that has nothing to do at `now_us` looks again, if nobody wakes it before: it tells
// its counts then, or gives up waiting for its turn, unless that time has passed (while it is
// paused, or has no wish any more, it goes on without a turn later).
constexpr uint64_t NextPinnerLookUs(uint64_t now_us, uint64_t tell_at_us, uint64_t turn_until_us) {
  return turn_until_us > now_us ? std::min(tell_at_us, turn_until_us) : tell_at_us;
}

class SegmentPinner {
 public:
  struct Hooks {
    // Asks for this process's turn; OnTurn follows. False: nobody gives out turns here.
    std::function<bool()> ask_turn;
    std::function<void()> end_turn;
    std::function<void(const std::string& sentence)> report;
    std::function<void()> tell_counts;  // to the daemon, if they have changed
  };
  SegmentPinner(std::shared_ptr<HostPins> pins, Hooks hooks, uint64_t turn_wait_us)
      : pins_(std::move(pins)), hooks_(std::move(hooks)), turn_wait_us_(turn_wait_us) {}
  // REQUIRES: stopped, if it was started.
  ~SegmentPinner() = default;
  SegmentPinner(const SegmentPinner&) = delete;
  SegmentPinner& operator=(const SegmentPinner&) = delete;

  void Start();  // may throw std::system_error
  // What is registered stays so; from here on Retire does nothing.
  void Stop();
  const std::shared_ptr<HostPins>& pins() const { return pins_; }

  // ---- from attachments ----
  // A segment that is mapped and leased. `pin` registers it, or finds that nobody wants that any
  // more; it is forgotten uncalled when the connection ends.
  struct Wish {
    uint32_t segment = 0;
    uint64_t segment_bytes = 0;
    std::function<Status()> pin;
  };
  // Has it registered when its turn comes. Where memory for the wish is short, it stays as it is.
  void Want(Wish wish) noexcept;
  // Runs `job`, which takes memory out and unmaps it. False: do it yourself.
  bool Retire(std::function<void()> job);

  // ---- from the connection ----
  void OnConnect();
  void OnTurn();
  // Whoever was to have a segment registered has lost its connection, and this process its turn.
  void OnDisconnect();

  // Counts; each needs a Resume. kOk: nothing is being registered now, nor will be. kBusy: at the
  // deadline something still is.
  Status Pause(uint64_t deadline_us);
  void Resume();

 private:
  enum class Turn { kNone, kAsked, kGranted, kNotNeeded };
  enum class Step { kWait, kEnd, kRetire, kAsk, kRegister, kGiveBack, kTell };

  void Run();
  Step NextStep(uint64_t now_us) const;
  void Ask(std::unique_lock<std::mutex>& lock);
  void RegisterNext(std::unique_lock<std::mutex>& lock);
  void Register(const Wish& wish);

  const std::shared_ptr<HostPins> pins_;
  const Hooks hooks_;
  const uint64_t turn_wait_us_;

  std::mutex mutex_;
  std::condition_variable changed_;  // for the thread
  std::condition_variable idle_;     // for those who pause
  std::deque<Wish> wanted_;
  std::deque<std::function<void()>> retired_;
  Turn turn_ = Turn::kNone;
  uint64_t turn_until_us_ = 0;  // while asked
  uint64_t tell_at_us_ = 0;
  uint32_t pause_count_ = 0;
  bool is_working_ = false;  // in a call of the device
  bool is_running_ = false;
  bool is_stopping_ = false;
  bool has_reported_ = false;
  std::thread thread_;
};

}  // namespace terrace::client
