#include "tiers/loop_inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace terrace {
namespace {

using testing::ElementsAre;

TEST(LoopInbox, RunsWhatOthersLeaveOnTheLoopsThreadInTheirOrder) {
  asio::io_context loop{1};
  const auto inbox = LoopInbox::Open(loop);
  std::vector<int> ran;
  std::thread([&] {
    for (int i = 0; i < 3; ++i) {
      inbox->Post([&, i] {
        ran.push_back(i);
        if (i == 2) inbox->Close();
      });
    }
  }).join();
  EXPECT_THAT(ran, ElementsAre()) << "only the loop runs it";
  loop.run();  // ends, as it has no work behind Close
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
}

TEST(LoopInbox, RunsLaterWhatItsOwnWorkPosts) {
  asio::io_context loop{1};
  const auto inbox = LoopInbox::Open(loop);
  std::vector<int> ran;
  inbox->Post([&] {
    inbox->Post([&] {
      ran.push_back(2);
      inbox->Close();
    });
    ran.push_back(1);
  });
  loop.run();
  EXPECT_THAT(ran, ElementsAre(1, 2));
}

TEST(LoopInbox, DestroysWhatComesAfterClose) {
  const auto counted = std::make_shared<int>();
  LoopInbox::Poster poster;
  {
    asio::io_context loop{1};
    const auto inbox = LoopInbox::Open(loop);
    inbox->Post([counted] { FAIL() << "closed before it ran"; });
    inbox->Close();
    EXPECT_EQ(counted.use_count(), 1);
    loop.run();
    poster = inbox->poster();
  }
  poster([counted] { FAIL() << "there is no loop any more"; });
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(LoopInbox, WhatIsBehindACloseInTheSameTurnIsDestroyedUnrun) {
  asio::io_context loop{1};
  const auto inbox = LoopInbox::Open(loop);
  const auto counted = std::make_shared<int>();
  inbox->Post([&] { inbox->Close(); });
  inbox->Post([counted] { FAIL() << "closed by the one before"; });
  loop.run();
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(LoopInbox, ManyThreadsWakeALoopThatSleeps) {
  constexpr uint32_t kThreads = 4, kPosts = 5'000;
  asio::io_context loop{1};
  const auto inbox = LoopInbox::Open(loop);
  uint32_t ran = 0;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint32_t post = 0; post < kPosts; ++post) {
        inbox->Post([&] {
          if (++ran == kThreads * kPosts) inbox->Close();
        });
      }
    });
  }
  loop.run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kPosts);
}

TEST(LoopInbox, SaysThatThereIsNoDescriptorLeft) {
  asio::io_context loop{1};
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW((void)LoopInbox::Open(loop), std::system_error);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace terrace
