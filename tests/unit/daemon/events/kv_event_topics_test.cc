// Topics come and go with their groups, and what no topic is left for is counted.
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/daemon/events/kv_event_publisher_fixture.h"

namespace terrace {
namespace {

using KvEventTopics = KvEventPublisherTest;

TEST_F(KvEventTopics, ATopicBeginsEmptyAsSoonAsItsGroupIsThere) {
  Start();
  std::this_thread::sleep_for(milliseconds(50));  // nothing is to do: its thread sleeps
  StreamOf("one");
  UntilTold(1);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].topic, "kv@one");
  EXPECT_TRUE(messages[0].is_cleared());
}

TEST_F(KvEventTopics, ATopicEndsEmptyWithItsLastGroupBehindWhatWasTold) {
  Start();
  const uint32_t stream = StreamOf("one");
  EXPECT_EQ(StreamOf("one"), stream) << "of another group";
  publisher_->EndStream(stream);
  Publish(stream, 20);
  UntilTold(21);
  Publish(stream, 20);
  publisher_->EndStream(stream);
  UntilTold(42);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 42u);
  for (size_t i = 1; i < 41; ++i) EXPECT_FALSE(messages[i].is_cleared()) << i;
  EXPECT_TRUE(messages[41].is_cleared() && !messages[41].is_stored());
}

TEST_F(KvEventTopics, WhatComesLateOfATopicThatHasGoneIsNotTheNextOnes) {
  Start();
  const uint32_t gone = StreamOf("one");
  publisher_->EndStream(gone);
  UntilTold(2);
  const uint32_t stream = StreamOf("two");
  EXPECT_NE(stream, gone);
  Publish(gone, 1);
  Publish(stream, 1);
  UntilTold(4);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[3].topic, "kv@two");
  EXPECT_EQ(messages[3].payload.find("BlockRemoved"), std::string::npos);
}

TEST_F(KvEventTopics, AnyNumberOfGroupsMayComeOneAfterTheOtherAndTheNextIsHeard) {
  constexpr uint32_t kModels = KvEventStreams::kStreamsMax + 1000, kAtOnce = 500;
  config_.kv_events.replay_batches = 10;
  Start();
  for (uint32_t i = 0; i < kModels; ++i) {
    const uint32_t stream = StreamOf("model" + std::to_string(i));
    ASSERT_NE(stream, KvEventSink::kStreamNone) << i;
    publisher_->EndStream(stream);
    // At most as many messages as an opening and an end have; a topic may begin and end at once.
    if (i % kAtOnce == 0) UntilTold(2 * uint64_t{i} + 2);
  }
  one_ = StreamOf("one");
  UntilTold(2 * uint64_t{kModels} + 1);
  const uint64_t before = publisher_->counters().messages;
  TellAnew({Stored(one_, 7)});
  UntilTold(before + 1 + KvEventPublisher::kGoneTopicsMax);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(publisher_->counters().messages, before + 1 + KvEventPublisher::kGoneTopicsMax)
      << "those that went long ago are remembered no more";
  EXPECT_EQ(publisher_->counters().lost, 0u);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  bool is_told = false;
  for (const Message& message : Answer(asker)) {
    is_told |= message.topic == "kv@one" && message.is_cleared() && message.is_stored();
  }
  EXPECT_TRUE(is_told);
}

TEST_F(KvEventTopics, EventsThatNoStreamIsLeftForAreLostAndSaidToBe) {
  Start([] { FAIL() << "nothing can be told anew of them"; });
  std::vector<uint32_t> streams;
  for (uint32_t i = 0; i < KvEventStreams::kStreamsMax; ++i) {
    streams.push_back(StreamOf("model" + std::to_string(i)));
  }
  EXPECT_EQ(publisher_->counters().untold_groups, 0u);
  const uint32_t none = StreamOf("one too many");
  ASSERT_EQ(none, KvEventSink::kStreamNone);
  EXPECT_EQ(publisher_->counters().untold_groups, 1u);
  publisher_->Publish(std::vector<KvEvent>{Stored(none, 1)});
  EXPECT_EQ(publisher_->counters().lost, 1u);
  publisher_->EndStream(none);
  EXPECT_EQ(publisher_->counters().untold_groups, 0u);
  publisher_->EndStream(streams[7]);
  Until([&] { return StreamOf("one more") != KvEventSink::kStreamNone; });
}

TEST(KvEventStreams, AGroupThatComesBackInTimeGoesOnWithItsStream) {
  KvEventStreams streams;
  const uint32_t stream = streams.Open("one", 16);
  EXPECT_NE(streams.Open("one", 32), stream);
  EXPECT_EQ(streams.TakeChanges(0).size(), 2u);
  streams.End(stream, 10);
  EXPECT_FALSE(streams.has_changes(9));
  EXPECT_TRUE(streams.TakeChanges(9).empty()) << "some of its events may be queued";
  EXPECT_EQ(streams.Open("one", 16), stream);
  EXPECT_TRUE(streams.TakeChanges(10).empty());
  ASSERT_NE(streams.Find(stream), nullptr);
  streams.End(stream, 20);
  EXPECT_TRUE(streams.has_changes(20));
  const std::vector<KvEventStreams::Change> changes = streams.TakeChanges(20);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].stream, stream);
  EXPECT_FALSE(changes[0].begins);
  EXPECT_EQ(streams.Find(stream), nullptr);
  EXPECT_NE(streams.Open("one", 16), stream);
}

// The clock of a host may go back between two starts; numbers do not.
TEST_F(KvEventTopics, NumbersBeginBehindAllThatADaemonBeforeCanHaveGiven) {
  config_.state_dir = directory_;
  const std::string file = directory_ + "/numbers";
  KvEventNumbers first(file);
  EXPECT_EQ(first.First(1'000'000), 1'000'000u);
  first.Reserve(1'000'000);
  first.Reserve(1'000'000 + KvEventNumbers::kAhead);
  EXPECT_EQ(KvEventNumbers(file).First(5'000), 1'000'000 + 2 * KvEventNumbers::kAhead);
  EXPECT_EQ(KvEventNumbers(file).First(1'000'000'000), 1'000'000'000u) << "the clock's, mostly";
  EXPECT_EQ(KvEventNumbers("").First(5'000), 5'000u);
  KvEventNumbers nowhere(directory_ + "/no/numbers");
  nowhere.Reserve(7);
  EXPECT_EQ(nowhere.First(7), 7u);
  Start();
  StreamOf("one");
  UntilTold(1);
  publisher_.reset();
  uint64_t kept = 0;
  std::ifstream(directory_ + "/kv-event-numbers") >> kept;
  EXPECT_GT(kept, KvEventNumbers::kAhead);
  std::ofstream(directory_ + "/kv-event-numbers") << kept + 1'000'000'000'000'000;
  Start();
  StreamOf("one");
  UntilTold(1);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  EXPECT_EQ(Answer(asker).front().number, kept + 1'000'000'000'000'000);
}

}  // namespace
}  // namespace terrace
