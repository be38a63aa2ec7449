#include "client/core/background.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace terrace::client {
namespace {

constexpr uint64_t kBackoffUsMin = 10'000;
// How late it notices that no blocking caller reads any more, with nothing pending.
constexpr uint64_t kTickUs = 50'000;
// Between tries for the reader role on a hung-up socket that a caller is about to notice itself.
constexpr uint64_t kHungUpPauseUs = 1'000;
// So that one busy socket does not keep callbacks and deadlines waiting.
constexpr int kReadsMax = 64;
constexpr uint32_t kLivesPerTtl = 3;

// What a user's callback throws ends here: the thread goes on for everybody else.
void Invoke(const CompletionCallback& callback, ClientCompletion completion) {
  try {
    callback(std::move(completion));
  } catch (...) {
  }
}

}  // namespace

void Background::Run() {
  pthread_setname_np(pthread_self(), "terrace-client");
  random_state_ = MonotonicUs() ^ static_cast<uint64_t>(getpid()) << 32;
  while (!core_.is_stopping_) {
    try {
      RunOnce();
    } catch (const std::bad_alloc&) {
      core_.SetError("no memory to connect to the daemon; it is tried again");
      BackOff();
    }
  }
  core_.link_.Shutdown();
  core_.reader_.Lock();
  core_.Teardown();
  core_.reader_.Unlock();
  core_.sleepers_.WakeAll();
  core_.orders_.Close();
  RunCallbacks();
  DropRetired();
  core_.completions_.Clear();  // of what was answered, or given up, while it stopped
}

void Background::RunOnce() {
  RunCallbacks();
  DropRetired();
  if (!Connect()) return BackOff();
  connected_at_us_ = MonotonicUs();
  Serve();
  // A daemon that takes connections only to break them is not tried at full speed.
  const uint64_t lived_us = MonotonicUs() - connected_at_us_;
  if (lived_us > core_.options_.reconnect_backoff_ms_max * uint64_t{1'000}) backoff_us_ = 0;
  BackOff();
}

bool Background::Connect() {
  Refusal refusal;
  Handshake handshake(core_.options_, core_.link_.wake_fd(), core_.is_stopping_);
  if (!handshake.Run(&refusal)) {
    Report(refusal);
    return false;
  }
  const uint32_t connection = ++connection_count_ == 0 ? ++connection_count_ : connection_count_;
  for (uint32_t index = 0; index < core_.groups_.count(); ++index) {
    Refusal group_refusal;
    const bool is_alive = handshake.Open(*core_.groups_.At(index), connection, &group_refusal);
    if (!is_alive || !group_refusal.status.ok()) Report(group_refusal);
    if (!is_alive) return false;
  }
  // Last: work orders may follow at once, and nobody takes them before the core does.
  const uint64_t boot_id = handshake.attachment()->boot_id();
  if (core_.options_.device != nullptr && device_refused_boot_id_ != boot_id) {
    Refusal device_refusal;
    const bool is_alive = handshake.AttachDevice(core_.device_name(), &device_refusal);
    if (!device_refusal.status.ok()) Report(device_refusal);
    // A daemon that does not know the verb says so, and closes the connection; one whose slabs this
    // process cannot take would send it work orders. Either is connected to again, without.
    if (device_refusal.status.code() == StatusCode::kInvalid) device_refused_boot_id_ = boot_id;
    if (!is_alive || device_refused_boot_id_ == boot_id) return false;
  }
  Publish(handshake, connection);
  return true;
}

void Background::Publish(Handshake& handshake, uint32_t connection) {
  const std::shared_ptr<Attachment> attachment = handshake.attachment();
  core_.reader_.Lock();
  core_.frames_ = handshake.TakeReader();
  core_.boot_id_ = attachment->boot_id();
  core_.keys_per_request_max_ =
      std::min(attachment->geometry().keys_per_request_max, protocol::kKeysPerRequestMax);
  {
    LockGuard guard(core_.state_lock_);
    core_.attachment_ = attachment;
    core_.refusal_ = Refusal();
  }
  const std::shared_ptr<SegmentPinner> pinner = core_.pinner();
  if (pinner != nullptr) attachment->SetPinner(pinner);
  core_.is_broken_ = false;
  core_.link_.Attach(handshake.TakeSocket(), connection, attachment->geometry().frame_bytes_max);
  core_.Dispatch();
  core_.LeaveReader();
  core_.connecting_.WakeAll();
  if (pinner != nullptr) pinner->OnConnect();
}

void Background::Report(const Refusal& refusal) {
  core_.SetError(refusal.text);
  {
    LockGuard guard(core_.state_lock_);
    core_.refusal_ = refusal;
  }
  core_.connecting_.WakeAll();
}

void Background::BackOff() {
  const uint64_t backoff_us_max = core_.options_.reconnect_backoff_ms_max * uint64_t{1'000};
  backoff_us_ = std::min(std::max(kBackoffUsMin, backoff_us_ * 2), backoff_us_max);
  // xorshift64; 50 to 100 % of the step, so that clients of one daemon do not return in step.
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  const uint64_t until_us = MonotonicUs() + backoff_us_ / 2 + random_state_ % (backoff_us_ / 2 + 1);
  while (!core_.is_stopping_ && MonotonicUs() < until_us) {
    RunCallbacks();
    DropRetired();
    const uint64_t order_us = core_.orders_.Step();  // one may be under way still
    core_.link_.WaitInBackground(std::min(until_us, order_us));
  }
}

void Background::Serve() {
  sent_at_us_ = MonotonicUs();
  while (!core_.is_stopping_ && core_.is_connected()) {
    // Who submits a request from here on finds its deadline earlier than this, and wakes us.
    core_.background_until_us_ = kNever;
    const uint64_t until_us = std::min({MonotonicUs() + kTickUs, ExpireRequests(), ShowLife()});
    RunCallbacks();
    DropRetired();
    core_.background_until_us_ = until_us;
    const uint64_t order_us = core_.orders_.Step();
    const Link::Event event = core_.link_.WaitInBackground(std::min(until_us, order_us));
    if (event != Link::Event::kNone) {
      Read(event);
    } else if (!core_.reader_.is_locked()) {
      core_.link_.ListenInBackground();
    }
  }
  core_.orders_.Drop();
}

void Background::Read(Link::Event event) {
  if (!core_.reader_.TryLock()) {
    // A caller reads. It listens for us again when it leaves, if it leaves after this.
    core_.link_.ListenInCaller();
    if (!core_.reader_.TryLock()) {
      if (event == Link::Event::kHungUp) usleep(kHungUpPauseUs);
      return;
    }
  }
  for (int reads = 0; reads < kReadsMax && core_.ReadOnce(); ++reads) {
  }
  core_.LeaveReader();
  core_.link_.ListenInBackground();
}

uint64_t Background::ExpireRequests() {
  uint64_t next_deadline_us = kNever;
  const uint64_t now_us = MonotonicUs();
  while (Request* request = core_.requests_.ClaimExpired(now_us, &next_deadline_us)) {
    ClientCompletion completion;
    completion.user_data = request->user_data;
    completion.verb = request->asked.verb;
    completion.status = Status(StatusCode::kBusy, "the deadline passed");
    const CompletionCallback callback = std::move(request->callback);
    if (callback == nullptr) {
      core_.completions_.Push(std::move(completion));
      core_.sleepers_.WakeLane(kLeaseLane);
    }
    core_.requests_.FinishExpiry(*request);
    if (callback != nullptr) Invoke(callback, std::move(completion));
  }
  return next_deadline_us;
}

uint64_t Background::ShowLife() {
  const std::shared_ptr<Attachment> attachment = core_.attachment();
  const uint64_t now_us = MonotonicUs();
  if (attachment == nullptr || attachment->geometry().lease_ttl_ms == 0) return kNever;
  const uint64_t period_us = attachment->geometry().lease_ttl_ms * uint64_t{1'000} / kLivesPerTtl;
  const uint32_t sent_count = core_.link_.sent_count();
  if (sent_count != sent_count_seen_) {
    sent_count_seen_ = sent_count;
    sent_at_us_ = now_us;
  }
  if (now_us - sent_at_us_ < period_us) return sent_at_us_ + period_us;
  // Leases alone have a time to live; any frame renews them all.
  const protocol::TouchRequest touch{.token = core_.registry_.AnyToken()};
  if (!touch.token.is_zero()) {
    core_.SendUnawaited(core_.connection(), protocol::Verb::kTouch, {BytesOf(touch)});
  }
  sent_at_us_ = now_us;
  return now_us + period_us;
}

void Background::RunCallbacks() {
  while (true) {
    Request* request = nullptr;
    {
      LockGuard guard(core_.callbacks_lock_);
      if (core_.callbacks_.empty()) return;
      // Oldest first; there are few.
      request = core_.callbacks_.front();
      core_.callbacks_.erase(core_.callbacks_.begin());
    }
    const CompletionCallback callback = std::move(request->callback);
    ClientCompletion completion = Core::CompletionOf(*request);
    core_.requests_.Free(*request);
    Invoke(callback, std::move(completion));
  }
}

void Background::DropRetired() {
  std::shared_ptr<Attachment> retired;
  std::vector<std::shared_ptr<Attachment>> left;
  LockGuard guard(core_.state_lock_);
  retired.swap(core_.retired_);
  left.swap(core_.left_);
}

}  // namespace terrace::client
