// Who subscribes is told of every block, however often somebody does.
#include "daemon/events/kv_event_newcomers.h"

#include <atomic>

#include "tests/unit/daemon/events/kv_event_publisher_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kSecondUs = 1'000'000;

class KvEventNewcomersTest : public ::testing::Test {
 protected:
  KvEventNewcomersTest() {
    events_.set(zmq::sockopt::xpub_verbose, 1);
    events_.set(zmq::sockopt::rcvhwm, 0);  // or subscriptions inside a process are dropped
    router_.set(zmq::sockopt::sndhwm, 0);
    events_.bind("inproc://events");
    router_.connect("inproc://events");
  }
  // Once more, if it has.
  void Subscribe(const std::string& text) {
    router_.set(zmq::sockopt::subscribe, text);
    newcomers_.Receive(
        events_,
        [](std::string_view begin) { return std::string_view("kv@one").starts_with(begin); },
        now_us_);
  }
  // True: all was asked for, and told.
  bool Ask() {
    if (!newcomers_.IsDue(now_us_)) return false;
    newcomers_.OnAsked(now_us_);
    newcomers_.OnAllBegins();
    return true;
  }

  zmq::context_t context_{0};
  zmq::socket_t events_{context_, zmq::socket_type::xpub};
  zmq::socket_t router_{context_, zmq::socket_type::sub};
  KvEventNewcomers newcomers_;
  uint64_t now_us_ = kSecondUs;
};

TEST_F(KvEventNewcomersTest, WhoComesWithOthersIsToldWithThemAndSoon) {
  EXPECT_FALSE(Ask()) << "nobody is there";
  Subscribe("");
  Subscribe("kv@");
  EXPECT_FALSE(Ask());
  now_us_ += KvEventNewcomers::kGatherUs;
  Subscribe("kv@one");
  EXPECT_TRUE(Ask());
  EXPECT_FALSE(Ask());
  now_us_ += 100 * kSecondUs;
  EXPECT_FALSE(Ask()) << "all of them were told";
  Subscribe("kv@");
  now_us_ += KvEventNewcomers::kGatherUs;
  EXPECT_TRUE(Ask()) << "a quiet time has no consequence";
}

TEST_F(KvEventNewcomersTest, SubscriptionsThatNoTopicBeginsWithAreNothing) {
  Subscribe("kv@two");
  Subscribe("kv@one@more");
  now_us_ += KvEventNewcomers::kGatherUs;
  EXPECT_FALSE(Ask());
}

TEST_F(KvEventNewcomersTest, WhoSubscribesAgainAndAgainHasAllToldOnceAMinute) {
  constexpr uint64_t kMinutes = 60, kStepUs = 100'000;
  uint32_t told_count = 0, told_within_a_minute = 0;
  for (uint64_t at_us = 0; at_us < kMinutes * 60 * kSecondUs; at_us += kStepUs) {
    now_us_ += kStepUs;
    Subscribe("");
    told_count += Ask();
    if (at_us < 60 * kSecondUs) told_within_a_minute = told_count;
  }
  EXPECT_GE(told_within_a_minute, 3u);
  EXPECT_LE(told_within_a_minute, 5u);
  EXPECT_LE(told_count, kMinutes + 5);
  EXPECT_GE(told_count, kMinutes - 1) << "and who came with it is not forgotten";
  now_us_ += 2 * KvEventNewcomers::kPauseUsMax;
  (void)Ask();
  now_us_ += 2 * KvEventNewcomers::kPauseUsMax;
  Subscribe("");
  now_us_ += KvEventNewcomers::kGatherUs;
  EXPECT_TRUE(Ask()) << "then it is as it was";
  Subscribe("");
  now_us_ += KvEventNewcomers::kPauseUsMin;
  EXPECT_TRUE(Ask());
}

// What a router believes may be of a daemon before this one, which it never heard end.
TEST_F(KvEventPublisherTest, WhoSubscribesIsToldOfEveryBlockBehindAClear) {
  std::atomic<uint32_t> republications = 0;
  Start([&] {
    ++republications;
    TellAnew({Stored(one_, 7)});
  });
  one_ = StreamOf("one");
  Publish(one_, 1);
  Publish(StreamOf("two"), 1);
  UntilTold(4);
  std::vector<zmq::socket_t> routers;
  for (int i = 0; i < 3; ++i) routers.push_back(Subscriber());
  for (zmq::socket_t& router : routers) {
    Message message;
    ASSERT_TRUE(Receive(router, &message));
    EXPECT_EQ(message.topic, "kv@one");
    EXPECT_TRUE(message.is_cleared() && message.is_stored());
    ASSERT_TRUE(Receive(router, &message));
    EXPECT_EQ(message.topic, "kv@two");
    EXPECT_TRUE(message.is_cleared() && !message.is_stored());
  }
  EXPECT_EQ(republications, 1u) << "for all of them";
  zmq::socket_t late = Subscriber();
  Message message;
  ASSERT_TRUE(Receive(late, &message));
  EXPECT_TRUE(message.is_cleared() && message.is_stored());
  EXPECT_EQ(republications, 2u);
}

}  // namespace
}  // namespace terrace
