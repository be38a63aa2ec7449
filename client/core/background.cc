#include "client/core/background.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

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
// Between two requests to open what the daemon refused: its configuration may change meanwhile.
constexpr uint64_t kReopenUsMin = 100'000;

}  // namespace

void Background::Run() {
  pthread_setname_np(pthread_self(), "terrace-client");
  random_state_ = MonotonicUs() ^ static_cast<uint64_t>(getpid()) << 32;
  while (!to_.connection.is_stopping()) {
    try {
      RunOnce();
    } catch (const std::bad_alloc&) {
      to_.connection.SetError("no memory to connect to the daemon; it is tried again");
      BackOff();
    }
  }
  link_.Shutdown();
  to_.reader.End();
  to_.orders.Close();
  CleanUp();
  to_.requests.completions().Clear();  // of what was answered, or given up, while it stopped
}

void Background::RunOnce() {
  CleanUp();
  if (!Connect()) return BackOff();
  connected_at_us_ = MonotonicUs();
  Serve();
  // A daemon that takes connections only to break them is not tried at full speed.
  const uint64_t lived_us = MonotonicUs() - connected_at_us_;
  if (lived_us > to_.options.reconnect_backoff_ms_max * uint64_t{1'000}) backoff_us_ = 0;
  BackOff();
}

bool Background::Connect() {
  Refusal refusal;
  // Calls of a bypassed domain complete without a session.
  Handshake handshake(to_.options, link_.wake_fd(), to_.connection.is_stopping(),
                      [this] { CleanUp(); });
  if (!handshake.Run(&refusal)) {
    to_.connection.Refuse(refusal);
    unconnected_why_ = std::move(refusal.text);
    return false;
  }
  // It is over: no sentence for whatever goes wrong later.
  to_.connection.ClearError(unconnected_why_);
  to_.notices.Show(handshake.notices());
  const uint32_t connection = ++connection_count_ == 0 ? ++connection_count_ : connection_count_;
  // The device last: work orders may follow at once, and nobody takes them before the reader does.
  if (!OpenGroups(handshake, connection) || !AttachDevice(handshake)) return false;
  to_.reader.Begin({.attachment = handshake.attachment(),
                    .socket = handshake.TakeSocket(),
                    .frames = handshake.TakeReader(),
                    .connection = connection});
  return true;
}

bool Background::OpenGroups(Handshake& handshake, uint32_t connection) {
  for (uint32_t index = 0; index < to_.groups.count(); ++index) {
    Refusal refusal;
    const bool is_alive = handshake.Open(*to_.groups.At(index), connection, &refusal);
    if (!is_alive || !refusal.status.ok()) to_.connection.Refuse(refusal);
    if (!is_alive) return false;
  }
  return true;
}

bool Background::AttachDevice(Handshake& handshake) {
  const uint64_t boot_id = handshake.attachment()->boot_id();
  if (to_.options.device == nullptr || device_refused_boot_id_ == boot_id) return true;
  Refusal refusal;
  const bool is_alive = handshake.AttachDevice(to_.device_name, &refusal);
  if (!refusal.status.ok()) to_.connection.Refuse(refusal);
  // A daemon that does not know the verb says so, and closes the connection; one whose slabs this
  // process cannot take would send it work orders. Either is connected to again, without.
  if (refusal.status.code() == StatusCode::kInvalid) device_refused_boot_id_ = boot_id;
  return is_alive && device_refused_boot_id_ != boot_id;
}

void Background::BackOff() {
  const uint64_t backoff_us_max = to_.options.reconnect_backoff_ms_max * uint64_t{1'000};
  backoff_us_ = std::min(std::max(kBackoffUsMin, backoff_us_ * 2), backoff_us_max);
  // xorshift64; 50 to 100 % of the step, so that clients of one daemon do not return in step.
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  const uint64_t until_us = MonotonicUs() + backoff_us_ / 2 + random_state_ % (backoff_us_ / 2 + 1);
  while (!to_.connection.is_stopping() && MonotonicUs() < until_us) {
    CleanUp();
    const uint64_t order_us = to_.orders.Step();  // one may be under way still
    link_.WaitInBackground(std::min(until_us, order_us));
  }
}

void Background::Serve() {
  sent_at_us_ = MonotonicUs();
  reopen_at_us_ = sent_at_us_ + ReopenUs();
  while (!to_.connection.is_stopping() && to_.connection.is_connected()) {
    // Who submits a request from here on finds its deadline earlier than this, and wakes us.
    to_.requests.SetNextLook(kNever);
    const uint64_t until_us =
        std::min({MonotonicUs() + kTickUs, to_.requests.Expire(), ShowLife(), ReopenGroups()});
    CleanUp();
    to_.requests.SetNextLook(until_us);
    const uint64_t order_us = to_.orders.Step();
    const Link::Event event = link_.WaitInBackground(std::min(until_us, order_us));
    if (event != Link::Event::kNone) {
      Read(event);
    } else if (!to_.role.is_taken()) {
      link_.ListenInBackground();
    }
  }
  to_.orders.Drop();
}

void Background::Read(Link::Event event) {
  if (!to_.role.TryTake()) {
    // A caller reads. It listens for us again when it leaves, if it leaves after this.
    link_.ListenInCaller();
    if (!to_.role.TryTake()) {
      if (event == Link::Event::kHungUp) usleep(kHungUpPauseUs);
      return;
    }
  }
  for (int reads = 0; reads < kReadsMax && to_.reader.ReadOnce(); ++reads) {
  }
  to_.reader.Leave();
  link_.ListenInBackground();
}

uint64_t Background::ShowLife() {
  const std::shared_ptr<Attachment> attachment = to_.connection.attachment();
  const uint64_t now_us = MonotonicUs();
  if (attachment == nullptr || attachment->geometry().lease_ttl_ms == 0) return kNever;
  const uint64_t period_us = attachment->geometry().lease_ttl_ms * uint64_t{1'000} / kLivesPerTtl;
  const uint32_t sent_count = link_.sent_count();
  if (sent_count != sent_count_seen_) {
    sent_count_seen_ = sent_count;
    sent_at_us_ = now_us;
  }
  if (now_us - sent_at_us_ < period_us) return sent_at_us_ + period_us;
  // Leases alone have a time to live; any frame renews them all.
  const protocol::TouchRequest touch{.token = to_.leases.AnyToken()};
  if (!touch.token.is_zero()) {
    to_.connection.SendUnawaited(to_.connection.number(), protocol::Verb::kTouch, {BytesOf(touch)});
  }
  sent_at_us_ = now_us;
  return now_us + period_us;
}

uint64_t Background::ReopenUs() const {
  return std::max(kReopenUsMin, to_.options.reconnect_backoff_ms_max * uint64_t{1'000});
}

uint64_t Background::ReopenGroups() {
  const uint32_t connection = to_.connection.number();
  const uint64_t now_us = MonotonicUs();
  const bool is_due = now_us >= reopen_at_us_;
  bool is_any_closed = false;
  for (uint32_t index = 0; index < to_.groups.count(); ++index) {
    const Group& group = *to_.groups.At(index);
    if (group.handle(connection) != 0) continue;
    is_any_closed = true;
    if (!is_due) break;
    to_.connection.SendUnawaited(connection, protocol::Verb::kOpen, {group.open_body()});
  }
  if (is_due) reopen_at_us_ = now_us + ReopenUs();
  return is_any_closed ? reopen_at_us_ : kNever;
}

void Background::CleanUp() {
  to_.requests.RunCallbacks();
  to_.connection.DropUnused();
}

}  // namespace terrace::client
