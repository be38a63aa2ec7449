// Who asks for old messages over real sockets inside the process, by a clock of the test's own.
#include "daemon/events/kv_event_replay.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <string>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

namespace terrace {
namespace {

constexpr uint64_t kFirst = 1000;
constexpr uint64_t kEndOfReplay = UINT64_MAX;
constexpr uint32_t kBatchesMax = 3;

struct Message {
  uint64_t number = 0;
  std::string payload;
};

class KvEventReplayTest : public ::testing::Test {
 protected:
  KvEventReplayTest() {
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.bind("inproc://replay");
    asker_.set(zmq::sockopt::rcvhwm, 1);
    asker_.connect("inproc://replay");
  }

  void Keep(uint32_t count, const std::string& payload, const std::string& topic = "one") {
    for (uint32_t i = 0; i < count; ++i) {
      replay_.Keep(topic, zmq::message_t(payload.data(), payload.size()));
    }
  }
  void KeepWhole(uint32_t count, const std::string& payload) {
    replay_.BeginWhole();
    Keep(count, payload);
    replay_.EndWhole();
  }
  void Ask(uint64_t first) {
    const uint64_t wire = htobe64(first);
    asker_.send(zmq::const_buffer{}, zmq::send_flags::sndmore);
    asker_.send(zmq::buffer(&wire, sizeof(wire)), zmq::send_flags::none);
    replay_.Receive(router_);
  }
  // One more message of the answer. False if there is none by now.
  bool Read(Message* message) {
    (void)replay_.Send(router_, now_us_);
    std::vector<zmq::message_t> parts;
    if (!zmq::recv_multipart(asker_, std::back_inserter(parts), zmq::recv_flags::dontwait)) {
      return false;
    }
    EXPECT_EQ(parts.size(), 4u);
    uint64_t number = 0;
    std::memcpy(&number, parts[2].data(), sizeof(number));
    *message = {be64toh(number), parts[3].to_string()};
    return true;
  }
  // What is answered by now, without the end.
  std::vector<Message> Answer() {
    std::vector<Message> messages;
    Message message;
    while (Read(&message) && message.number != kEndOfReplay) messages.push_back(message);
    has_ended_ = message.number == kEndOfReplay;
    return messages;
  }

  zmq::context_t context_{0};
  zmq::socket_t router_{context_, zmq::socket_type::router};
  zmq::socket_t asker_{context_, zmq::socket_type::dealer};
  KvEventReplay replay_{{.batches_max = kBatchesMax,
                         .requests_per_peer_max = 4,
                         .first_sequence = kFirst,
                         .cleared = "cleared"}};
  uint64_t now_us_ = 1;
  bool has_ended_ = false;
};

TEST_F(KvEventReplayTest, AWholeIsKeptHoweverLargeItIs) {
  Keep(10, "before");
  Ask(1);
  EXPECT_TRUE(Answer().empty());
  EXPECT_TRUE(replay_.wants_all());
  const std::string large(2 * kMiB, 'x');
  const auto count = static_cast<uint32_t>(KvEventReplay::kBytesMax / large.size() + 8);
  KeepWhole(count, large);
  const std::vector<Message> messages = Answer();
  EXPECT_TRUE(has_ended_);
  ASSERT_EQ(messages.size(), count);
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(messages[i].number, kFirst + 10 + i);
    EXPECT_EQ(messages[i].payload.size(), large.size());
  }
  // So are those behind it, for whoever begins later.
  Keep(2, "behind");
  Ask(1);
  EXPECT_EQ(Answer().size(), count + 2);
  EXPECT_TRUE(has_ended_);
}

TEST_F(KvEventReplayTest, AWholeIsWantedAgainOnlyOnceAsManyBytesWereToldBehindIt) {
  const std::string payload(1000, 'x');
  KeepWhole(20, payload);
  Keep(20, payload);
  Ask(1);
  EXPECT_EQ(Answer().size(), 40u) << "many more than batches_max";
  EXPECT_FALSE(replay_.wants_all());
  Keep(1, payload);
  Ask(1);
  EXPECT_TRUE(Answer().empty());
  EXPECT_TRUE(replay_.wants_all());
  KeepWhole(1, payload);
  EXPECT_EQ(Answer().size(), 1u);
  Ask(kFirst + 42 - kBatchesMax);
  EXPECT_EQ(Answer().size(), kBatchesMax) << "no more than batches_max before a whole, it included";
}

TEST_F(KvEventReplayTest, WhoReadsTooSlowlyForAWholeIsToldAnotherOne) {
  KeepWhole(100, std::string(100, '1'));
  Ask(1);
  Message message;
  ASSERT_TRUE(Read(&message));
  Keep(200, std::string(100, 'b'));
  std::vector<Message> messages = Answer();  // those that were on their way
  ASSERT_FALSE(has_ended_);
  ASSERT_LT(messages.size(), 100u);
  EXPECT_TRUE(replay_.wants_all());
  KeepWhole(5, "2");
  messages = Answer();
  EXPECT_TRUE(has_ended_);
  ASSERT_EQ(messages.size(), 5u);
  for (const Message& each : messages) EXPECT_EQ(each.payload, "2");
}

TEST_F(KvEventReplayTest, WhatNobodyTellsAnewIsTakenBackByNumbersThatGrow) {
  Keep(5, "1");
  Keep(5, "2", "two");
  Ask(1);
  EXPECT_TRUE(Answer().empty());
  now_us_ += KvEventReplay::kUnreadUsMax + 1;
  EXPECT_TRUE(Answer().empty());
  const std::vector<Message> messages = Answer();
  EXPECT_TRUE(has_ended_);
  ASSERT_EQ(messages.size(), 2u + kBatchesMax);
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].payload, i < 2 ? "cleared" : "2");
    EXPECT_EQ(messages[i].number, kFirst + 10 - kBatchesMax - 2 + i);
  }
}

TEST_F(KvEventReplayTest, AWholeThatIsBeingToldIsWaitedFor) {
  Keep(5, "1");
  Ask(1);
  EXPECT_TRUE(Answer().empty());
  replay_.BeginWhole();
  for (int i = 0; i < 5; ++i) {
    Keep(5, "2");
    now_us_ += KvEventReplay::kUnreadUsMax;
    EXPECT_TRUE(Answer().empty());
  }
  replay_.EndWhole();
  EXPECT_EQ(Answer().size(), 25u);
  EXPECT_TRUE(has_ended_);
}

TEST_F(KvEventReplayTest, AWholeWithoutAnEndIsNotKept) {
  replay_.BeginWhole();
  Keep(50, "1");
  replay_.AbandonWhole();
  Keep(1, "2");
  Ask(kFirst + 51 - kBatchesMax);
  EXPECT_EQ(Answer().size(), kBatchesMax);
  Ask(kFirst + 50 - kBatchesMax);
  EXPECT_TRUE(Answer().empty());
  EXPECT_TRUE(replay_.wants_all());
}

}  // namespace
}  // namespace terrace
