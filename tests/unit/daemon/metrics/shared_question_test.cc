#include "daemon/metrics/shared_question.h"

#include <gtest/gtest.h>

#include <asio/executor_work_guard.hpp>
#include <vector>

namespace terrace {
namespace {

using std::chrono::milliseconds;

// The store thread is whoever calls Answer().
struct Asked {
  explicit Asked(milliseconds pace = milliseconds(0), milliseconds patience = milliseconds(20'000))
      : question(loop, pace, patience) {
    question.SetAsker([this](std::function<void()> done) {
      ++question_count;
      pending = std::move(done);
    });
  }
  void Ask() {
    question.Ask([this](bool is_answered) { told.push_back(is_answered); });
  }
  // Until the store thread has been asked so often.
  void RunUntilAsked(uint32_t count) {
    while (question_count < count) loop.run_one();
  }
  void Answer() { std::exchange(pending, nullptr)(); }

  asio::io_context loop{1};
  const asio::executor_work_guard<asio::io_context::executor_type> work = make_work_guard(loop);
  SharedQuestion question;
  std::function<void()> pending;
  uint32_t question_count = 0;
  std::vector<bool> told;
};

TEST(SharedQuestion, WhoAsksBeforeItIsOutSharesIt) {
  Asked on;
  for (int i = 0; i < 3; ++i) on.Ask();
  on.RunUntilAsked(1);
  on.Answer();
  EXPECT_EQ(on.told, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(on.question_count, 1u);
}

TEST(SharedQuestion, NobodyIsToldWhatWasFoundBeforeItAsked) {
  Asked on;
  on.Ask();
  on.RunUntilAsked(1);
  on.Ask();  // the store thread may have looked already
  on.Answer();
  EXPECT_EQ(on.told.size(), 1u);
  on.RunUntilAsked(2);
  on.Answer();
  EXPECT_EQ(on.told.size(), 2u);
}

TEST(SharedQuestion, TheStoreThreadIsAskedAtAPace) {
  Asked on(milliseconds(40));
  const auto began = std::chrono::steady_clock::now();
  for (uint32_t i = 1; i <= 4; ++i) {
    on.Ask();
    on.RunUntilAsked(i);
    on.Answer();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(3 * 40));
}

TEST(SharedQuestion, WhoIsNotAnsweredIsToldSoAndTheNextIsNotAskedBesides) {
  Asked on(milliseconds(0), milliseconds(10));
  on.Ask();
  on.RunUntilAsked(1);
  while (on.told.empty()) on.loop.run_one();
  EXPECT_EQ(on.told, std::vector<bool>{false});
  on.Ask();
  while (on.told.size() < 2) on.loop.run_one();
  EXPECT_EQ(on.question_count, 1u) << "the first is still out";
  on.Answer();
  on.Ask();
  on.RunUntilAsked(2);
  on.Answer();
  EXPECT_EQ(on.told, (std::vector<bool>{false, false, true}));
}

TEST(SharedQuestion, WithoutAnybodyToAskTheAnswerIsNo) {
  asio::io_context loop;
  SharedQuestion question(loop, milliseconds(0), milliseconds(10));
  bool was_answered = true;
  question.Ask([&](bool is_answered) { was_answered = is_answered; });
  EXPECT_FALSE(was_answered);
}

}  // namespace
}  // namespace terrace
