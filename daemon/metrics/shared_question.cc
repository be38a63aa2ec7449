#include "daemon/metrics/shared_question.h"

#include <utility>

#include "terrace/check.h"

namespace terrace {

void SharedQuestion::Ask(Told told) {
  if (!asker_) return told(false);
  waiters_.push_back(
      {.question = asked_count_ + 1, .due = Clock::now() + patience_, .told = std::move(told)});
  if (waiters_.size() == 1) ArmLate();
  AskWhenPaced();
}

void SharedQuestion::AskWhenPaced() {
  if (is_out_ || is_armed_ || waiters_.empty()) return;
  is_armed_ = true;
  next_.expires_at(asked_at_ + pace_);
  next_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    is_armed_ = false;
    TERRACE_CHECK(!is_out_, "what is being filled for one question is not read for another");
    is_out_ = true;
    ++asked_count_;
    asked_at_ = Clock::now();
    asker_([this] { OnDone(); });
  });
}

void SharedQuestion::OnDone() {
  TERRACE_CHECK(is_out_, "an asker is done once: the next question's would be taken for found");
  is_out_ = false;
  while (!waiters_.empty() && waiters_.front().question <= asked_count_) TellFirst(true);
  AskWhenPaced();
}

void SharedQuestion::ArmLate() {
  if (waiters_.empty()) return;
  late_.expires_at(waiters_.front().due);
  late_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    while (!waiters_.empty() && waiters_.front().due <= Clock::now()) TellFirst(false);
    ArmLate();
  });
}

void SharedQuestion::TellFirst(bool is_answered) {
  const Told told = std::move(waiters_.front().told);
  waiters_.pop_front();
  told(is_answered);
}

}  // namespace terrace
