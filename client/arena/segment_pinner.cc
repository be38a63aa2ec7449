#include "client/arena/segment_pinner.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "client/link/cancel_deferred.h"
#include "client/link/timed_lock.h"

namespace terrace::client {
namespace {

constexpr uint64_t kTellUs = 1'000'000;

std::chrono::steady_clock::time_point At(uint64_t monotonic_us) {
  constexpr uint64_t kFarUs = uint64_t{1} << 50;
  return std::chrono::steady_clock::time_point(
      std::chrono::microseconds(std::min(monotonic_us, kFarUs)));
}

}  // namespace

void SegmentPinner::Start() {
  const std::lock_guard lock(mutex_);
  thread_ = std::thread([this] { Run(); });
  is_running_ = true;
}

void SegmentPinner::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  const CancelDeferred deferred;
  if (thread_.joinable()) thread_.join();
}

void SegmentPinner::Want(Wish wish) noexcept {
  if (wish.segment_bytes > pins_->counts().pinned_bytes_max) return;
  const std::lock_guard lock(mutex_);
  try {
    wanted_.push_back(std::move(wish));
  } catch (const std::bad_alloc&) {
    return;  // it stays as it is
  }
  changed_.notify_all();
}

bool SegmentPinner::Retire(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (!is_running_ || is_stopping_) return false;
  try {
    retired_.push_back(std::move(job));
  } catch (const std::bad_alloc&) {
    return false;
  }
  changed_.notify_all();
  return true;
}

void SegmentPinner::OnConnect() {
  const std::lock_guard lock(mutex_);
  tell_at_us_ = 0;
  changed_.notify_all();
}

void SegmentPinner::OnTurn() {
  const std::lock_guard lock(mutex_);
  if (turn_ != Turn::kAsked) return;
  turn_ = Turn::kGranted;
  changed_.notify_all();
}

void SegmentPinner::OnDisconnect() {
  const std::lock_guard lock(mutex_);
  wanted_.clear();
  turn_ = Turn::kNone;
  changed_.notify_all();
}

Status SegmentPinner::Pause(uint64_t deadline_us) {
  const CancelDeferred deferred;
  std::unique_lock lock(mutex_);
  ++pause_count_;
  const bool is_idle = idle_.wait_until(lock, At(deadline_us), [this] { return !is_working_; });
  return is_idle ? Status::Ok()
                 : Status(StatusCode::kBusy, "a segment of the arena is still being registered");
}

void SegmentPinner::Resume() {
  const std::lock_guard lock(mutex_);
  if (pause_count_ > 0) --pause_count_;
  changed_.notify_all();
}

SegmentPinner::Step SegmentPinner::NextStep(uint64_t now_us) const {
  if (!retired_.empty() && (pause_count_ == 0 || is_stopping_)) return Step::kRetire;
  if (is_stopping_) return Step::kEnd;
  if (now_us >= tell_at_us_) return Step::kTell;
  const HostPins::Counts counts = pins_->counts();
  const bool may_register =
      !wanted_.empty() && pause_count_ == 0 &&
      wanted_.front().segment_bytes <= counts.pinned_bytes_max - counts.pinned_bytes;
  if (!may_register) return turn_ == Turn::kGranted ? Step::kGiveBack : Step::kWait;
  if (turn_ == Turn::kNone) return Step::kAsk;
  if (turn_ == Turn::kAsked && now_us < turn_until_us_) return Step::kWait;
  return Step::kRegister;
}

void SegmentPinner::Run() {
  pthread_setname_np(pthread_self(), "terrace-pins");
  std::unique_lock lock(mutex_);
  while (true) {
    const uint64_t now_us = MonotonicUs();
    switch (NextStep(now_us)) {
      case Step::kEnd:
        return;
      case Step::kWait:
        changed_.wait_until(lock, At(NextPinnerLookUs(now_us, tell_at_us_,
                                                      turn_ == Turn::kAsked ? turn_until_us_ : 0)));
        break;
      case Step::kTell:
        tell_at_us_ = MonotonicUs() + kTellUs;
        lock.unlock();
        hooks_.tell_counts();
        lock.lock();
        break;
      case Step::kRetire: {
        std::function<void()> job = std::move(retired_.front());
        retired_.pop_front();
        is_working_ = true;
        lock.unlock();
        job();
        job = nullptr;  // with the last reference to an attachment, which comes back here
        lock.lock();
        is_working_ = false;
        idle_.notify_all();
        break;
      }
      case Step::kAsk:
        Ask(lock);
        break;
      case Step::kRegister:
        RegisterNext(lock);
        break;
      case Step::kGiveBack:
        turn_ = Turn::kNone;
        lock.unlock();
        hooks_.end_turn();
        lock.lock();
        break;
    }
  }
}

void SegmentPinner::Ask(std::unique_lock<std::mutex>& lock) {
  turn_ = Turn::kAsked;
  turn_until_us_ = MonotonicUs() + turn_wait_us_;
  lock.unlock();
  const bool is_asked = hooks_.ask_turn();
  lock.lock();
  if (!is_asked && turn_ == Turn::kAsked) turn_ = Turn::kNotNeeded;
}

void SegmentPinner::RegisterNext(std::unique_lock<std::mutex>& lock) {
  const Wish wish = std::move(wanted_.front());
  wanted_.pop_front();
  const Turn turn = std::exchange(turn_, Turn::kNone);
  is_working_ = true;
  lock.unlock();
  Register(wish);
  if (turn != Turn::kNotNeeded) hooks_.end_turn();
  lock.lock();
  is_working_ = false;
  idle_.notify_all();
}

void SegmentPinner::Register(const Wish& wish) {
  const Status status = wish.pin();
  if (status.ok() || std::exchange(has_reported_, true)) return;
  try {
    hooks_.report("segment " + std::to_string(wish.segment) + " of the arena, " +
                  std::to_string(wish.segment_bytes) +
                  " bytes, cannot be registered with the device: " + status.what() + " (" +
                  std::to_string(status.detail()) +
                  "); its copies go through pinned memory of the copier's: raise this process's "
                  "limit of locked memory, or lower pinned_bytes_max");
  } catch (const std::bad_alloc&) {
    // It is counted.
  }
}

}  // namespace terrace::client
