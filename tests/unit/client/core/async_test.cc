// Asynchronous requests: exactly one completion each, whatever happens.
#include <poll.h>

#include <atomic>
#include <thread>
#include <vector>

#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;

class Async : public ClientFixture {};

TEST_F(Async, CompletionsWaitForPollAndMakeTheDescriptorReadable) {
  pollfd entry{client_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(3), {}, 11).ok());
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);
  ClientCompletion completion;
  ASSERT_TRUE(client_->Poll(&completion));
  EXPECT_EQ(completion.user_data, 11u);
  EXPECT_EQ(completion.verb, Verb::kAcquire);
  EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(completion.read_lease.block_count(), 3u);
  EXPECT_TRUE(completion.read_lease.is_valid());
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  EXPECT_FALSE(client_->Poll(&completion));
}

TEST_F(Async, EveryVerbCompletes) {
  std::atomic<int> done{0};
  std::atomic<uint32_t> sealed{0};
  const auto count = [&](ClientCompletion&& completion) {
    EXPECT_TRUE(completion.status.ok());
    if (completion.verb == Verb::kCommit) sealed = completion.block_count;
    ++done;
  };
  WriteLease lease = Reserve(2);
  ASSERT_TRUE(lease.WritePart(1, 0, 0, part_).ok());
  ASSERT_TRUE(client_->CommitAsync(lease, {}, 1, count).ok());
  ASSERT_TRUE(client_->PrefetchAsync(group_, TestKeys(3), {}, 2, count).ok());
  ASSERT_TRUE(client_->ReserveAsync(group_, TestKeys(3), {}, 3, count).ok());
  ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(3), {}, 4, count).ok());
  EXPECT_TRUE(Eventually([&] { return done == 4; }));
  EXPECT_EQ(sealed, 1u);
}

TEST_F(Async, ADeadlineCompletesOnceAndTheLateLeaseIsReleased) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kReserve; });
  std::atomic<int> done{0};
  ASSERT_TRUE(client_
                  ->ReserveAsync(group_, TestKeys(2), {.deadline_us = 2'000}, 1,
                                 [&](ClientCompletion&& completion) {
                                   EXPECT_EQ(completion.status.code(), StatusCode::kBusy);
                                   ++done;
                                 })
                  .ok());
  ASSERT_TRUE(client_->ReserveAsync(group_, TestKeys(2), {.deadline_us = 2'000}, 2).ok());
  ClientCompletion completion;
  ASSERT_TRUE(Eventually([&] { return client_->Poll(&completion); }));
  EXPECT_EQ(completion.status.code(), StatusCode::kBusy);
  ASSERT_TRUE(Eventually([&] { return done == 1; }));
  ASSERT_TRUE(daemon_.WaitFor(Verb::kReserve, 2));
  for (const PeerMessage& late : daemon_.Received(Verb::kReserve)) daemon_.AnswerAsUsual(late);
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 2));
  EXPECT_FALSE(client_->Poll(&completion));
  EXPECT_EQ(done, 1);
}

// A thread of the library ends what is late, while the caller that waits for it reads.
TEST_F(Async, WhoWaitsForOneHearsThatItIsLateAtOnce) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kAcquire; });
  ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(2), {.deadline_us = 50'000}, 1).ok());
  const auto began = std::chrono::steady_clock::now();
  ClientCompletion completion;
  ASSERT_TRUE(client_->PollUntil(&completion, 10 * kLongUs));
  EXPECT_EQ(completion.status.code(), StatusCode::kBusy);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::microseconds(5 * kLongUs));
}

// Another thread takes it, and looks once more, as an event loop does.
TEST_F(Async, WhoWaitsForOneHearsThatAnotherThreadHasTakenIt) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kAcquire; });
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(1), {.deadline_us = 10'000}, i).ok());
    std::atomic<int> taken_count{0};
    std::thread other([&] {
      ClientCompletion completion;
      pollfd entry{client_->event_fd(), POLLIN, 0};
      poll(&entry, 1, 30'000);
      while (client_->Poll(&completion)) ++taken_count;
    });
    const auto began = std::chrono::steady_clock::now();
    ClientCompletion completion;
    taken_count += client_->PollUntil(&completion, 10 * kLongUs);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::microseconds(5 * kLongUs));
    // The descriptor's thread has nothing to wait for if this one was first.
    ASSERT_TRUE(client_->PrefetchAsync(group_, TestKeys(1), {}, 100 + i).ok());
    other.join();
    while (client_->PollUntil(&completion, kLongUs)) ++taken_count;
    ASSERT_EQ(taken_count, 2);
  }
}

// Whoever has seen one of them end may ask for the next one.
TEST_F(Async, WhatHasEndedMakesRoomBeforeItIsSeen) {
  ClientOptions options = TestOptions(daemon_);
  options.pending_requests_max = 1;
  client_.reset();
  Connect(options);
  pollfd entry{client_->event_fd(), POLLIN, 0};
  ClientCompletion completion;
  for (uint64_t i = 0; i < 5'000; ++i) {
    ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(1), {}, i).ok()) << "after " << i;
    ASSERT_EQ(poll(&entry, 1, 30'000), 1);
    ASSERT_TRUE(client_->Poll(&completion));
  }
}

TEST_F(Async, WhatNobodyPollsIsBounded) {
  ClientOptions options = TestOptions(daemon_);
  options.pending_requests_max = 2;
  client_.reset();
  Connect(options);
  int accepted = 0;
  for (int i = 0; i < 100; ++i) {
    if (!Eventually([&] {
          const Status status = client_->PrefetchAsync(group_, TestKeys(1), {}, 0);
          if (status.ok()) ++accepted;
          return status.ok() || accepted == 8;
        })) {
      break;
    }
    if (accepted == 8) break;
  }
  EXPECT_EQ(accepted, 8);
  ClientCompletion completion;
  ASSERT_TRUE(Eventually([&] { return client_->Poll(&completion); }));
  EXPECT_TRUE(Eventually([&] { return client_->PrefetchAsync(group_, TestKeys(1), {}, 0).ok(); }));
}

TEST_F(Async, LeasesThatNobodyPollsEndWithTheClient) {
  ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(2), {}, 0).ok());
  ASSERT_TRUE(client_->ReserveAsync(group_, TestKeys(2), {}, 0).ok());
  pollfd entry{client_->event_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);  // the first one's answer; the other's may come later
  client_.reset();
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
}

TEST_F(Async, ACallbackMayUseTheClient) {
  std::atomic<int> step{0};
  ASSERT_TRUE(client_
                  ->AcquireAsync(group_, TestKeys(2), {}, 0,
                                 [&](ClientCompletion&& completion) {
                                   EXPECT_TRUE(completion.status.ok());
                                   EXPECT_TRUE(client_->Match(group_, TestKeys(2)).ok());
                                   completion.read_lease.Release();
                                   EXPECT_TRUE(client_
                                                   ->PrefetchAsync(group_, TestKeys(1), {}, 0,
                                                                   [&](ClientCompletion&&) {
                                                                     step = 2;
                                                                     throw 1;
                                                                   })
                                                   .ok());
                                 })
                  .ok());
  EXPECT_TRUE(Eventually([&] { return step == 2; }));
  EXPECT_TRUE(client_->Match(group_, TestKeys(2)).ok());
}

TEST_F(Async, ACallbackMayDestroyTheClient) {
  std::atomic<bool> is_gone{false};
  ASSERT_TRUE(client_
                  ->PrefetchAsync(group_, TestKeys(2), {}, 0,
                                  [&](ClientCompletion&&) {
                                    client_.reset();
                                    is_gone = true;
                                  })
                  .ok());
  EXPECT_TRUE(Eventually([&] { return is_gone.load(); }));
}

// Five requests, of which the first that ends destroys the Client.
struct DestroyedByACallback {
  std::atomic<int> called{0};
  std::atomic<bool> is_asked{false};  // all of them: a bypassed one is answered at once
  std::atomic<bool> is_gone{false};
  std::atomic<int> late{0};

  void Ask(std::unique_ptr<Client>& client, GroupRef group, uint64_t deadline_us) {
    RequestOptions options;
    options.deadline_us = deadline_us;
    for (uint64_t i = 0; i < 5; ++i) {
      const auto callback = [this, &client](ClientCompletion&&) {
        if (is_gone) ++late;
        if (called++ > 0) return;
        while (!is_asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        client.reset();
        is_gone = true;
      };
      ASSERT_TRUE(client->AcquireAsync(group, TestKeys(2), options, i, callback).ok());
    }
    is_asked = true;
    EXPECT_TRUE(Eventually([&] { return is_gone.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(called, 5) << "each has one completion";
    EXPECT_EQ(late, 0) << "the Client was gone, and with it what its callbacks use";
  }
};

TEST_F(Async, NoCallbackIsCalledAfterOneThatDestroyedTheClient) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kAcquire; });
  DestroyedByACallback expired;
  expired.Ask(client_, group_, 100'000);
  daemon_.set_handler(nullptr);
  Connect(TestOptions(daemon_));
  daemon_.TellMode(protocol::ServingMode::kBypassed);
  DestroyedByACallback answered;
  answered.Ask(client_, group_, kLongUs);
}

// Each callback asks again, and in a bypassed domain is answered at once.
struct ChainOfCallbacks {
  std::atomic<bool> is_over{false};
  std::atomic<int> asked{0}, links{0};

  void Ask(Client& client, GroupRef group) {
    const auto next = [this, &client, group](ClientCompletion&&) {
      ++links;
      if (!is_over) Ask(client, group);
    };
    if (client.AcquireAsync(group, TestKeys(1), {}, 1, next).ok()) ++asked;
  }
};

TEST_F(Async, AChainOfCallbacksEndsWithTheClientInABypassedDomain) {
  daemon_.TellMode(protocol::ServingMode::kBypassed);
  ChainOfCallbacks chain;
  chain.Ask(*client_, group_);
  ASSERT_TRUE(Eventually([&] { return chain.links > 100; }));
  std::atomic<bool> is_destroyed{false};
  std::thread destroyer([&] {
    client_.reset();
    is_destroyed = true;
  });
  EXPECT_TRUE(Eventually([&] { return is_destroyed.load(); }));
  chain.is_over = true;
  destroyer.join();
  EXPECT_EQ(chain.links, chain.asked) << "each has one completion";
}

TEST_F(Async, AChainOfCallbacksDoesNotKeepTheDaemonFromBeingHeard) {
  const ReadLease lease = Acquire(2);
  daemon_.TellMode(protocol::ServingMode::kBypassed);
  ChainOfCallbacks chain;
  chain.Ask(*client_, group_);
  EXPECT_TRUE(Eventually([&] { return chain.links > 100; }));
  Revoke(lease.token());
  EXPECT_TRUE(Eventually([&] { return !lease.is_valid(); }));
  chain.is_over = true;
  client_.reset();
}

// Unmapping an arena takes long, which is no matter of who lets its last lease go.
TEST_F(Async, TheLastLeaseOfAConnectionThatIsGoneIsUnmappedInTheBackground) {
  ReadLease lease = Acquire(2);
  Reconnect();
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_go{false};
  ASSERT_TRUE(client_
                  ->PrefetchAsync(group_, TestKeys(1), {}, 1,
                                  [&](ClientCompletion&&) {
                                    is_inside = true;
                                    while (!may_go) std::this_thread::yield();
                                    is_inside = false;
                                  })
                  .ok());
  ASSERT_TRUE(Eventually([&] { return is_inside.load(); }));
  lease = ReadLease();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(daemon_.IsLifeOver(0)) << "it was unmapped by this thread";
  may_go = true;
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
  EXPECT_TRUE(Eventually([&] { return !is_inside; }));
}

// Requests race with the end of their connection; each completes exactly once.
TEST_F(Async, ExactlyOneCompletionUnderDisconnects) {
  std::atomic<bool> is_over{false};
  std::thread breaker([&] {
    while (!is_over) {
      daemon_.Disconnect();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  constexpr int kRequests = 600;
  std::vector<std::atomic<int>> completions(kRequests);
  std::atomic<int> completed{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 3; ++user) {
    users.emplace_back([&, user] {
      for (int i = user; i < kRequests; i += 3) {
        const auto callback = [&, i](ClientCompletion&&) {
          ++completions[i];
          ++completed;
        };
        const RequestOptions options{.deadline_us = i % 5 == 0 ? 500u : 1'000'000u};
        while (!client_->AcquireAsync(group_, TestKeys(2), options, 0, callback).ok()) {
          static_cast<void>(client_->WaitConnected(kLongUs));
        }
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_TRUE(Eventually([&] { return completed == kRequests; }));
  is_over = true;
  breaker.join();
  client_.reset();
  for (const std::atomic<int>& count : completions) EXPECT_EQ(count, 1);
}

// Blocking callers take over the reading from each other while asynchronous requests are pending.
TEST_F(Async, ThreadsShareOneConnection) {
  std::atomic<int> pending{0};
  std::vector<std::thread> users;
  for (uint32_t user = 0; user < 8; ++user) {
    users.emplace_back([&, user] {
      for (uint32_t i = 0; i < 150; ++i) {
        const uint32_t count = 1 + (user * 31 + i * 7) % 64;
        if (i % 4 == 0) {
          ++pending;
          const Status status = client_->AcquireAsync(
              group_, TestKeys(count), {}, 0, [&, count](ClientCompletion&& completion) {
                EXPECT_TRUE(completion.status.ok());
                EXPECT_EQ(completion.read_lease.block_count(), count);
                --pending;
              });
          if (!status.ok()) --pending;
        } else if (i % 4 == 1) {
          Result<WriteLease> lease = client_->Reserve(group_, TestKeys(count));
          ASSERT_TRUE(lease.ok());
          ASSERT_TRUE(lease->WritePart(user, 0, 0, part_).ok() || user >= count);
          ASSERT_TRUE(client_->Commit(*lease).ok());
        } else {
          EXPECT_EQ(client_->Match(group_, TestKeys(count))->block_count, count);
        }
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_TRUE(Eventually([&] { return pending == 0; }));
}

}  // namespace
}  // namespace terrace
