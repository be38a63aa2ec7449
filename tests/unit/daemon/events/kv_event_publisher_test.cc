// Routers over real sockets: what they may ask for, what they cannot break, and what is told after
// an error.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <stdexcept>

#include "tests/unit/daemon/events/kv_event_publisher_fixture.h"

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // what is freed stays theirs
constexpr uint64_t kSanitizerBytes = 4 * kGiB;
#else
constexpr uint64_t kSanitizerBytes = 0;
#endif

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages >> pages;
  return pages * 4096;
}

TEST_F(KvEventPublisherTest, ATopicBeginsEmptyWhateverAPredecessorTold) {
  Start();
  Publish(StreamOf("one"), 2);
  UntilTold(3);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_TRUE(messages[0].is_cleared());
  EXPECT_FALSE(messages[1].is_cleared());
  EXPECT_EQ(messages[0].topic, "kv@one");
  EXPECT_EQ(messages[2].number, messages[0].number + 2);
  // Another size of block of the same model: the same topic goes on.
  SpaceSpec space{.model = "one", .block_tokens = 32};
  Publish(publisher_->StreamOf(0, {.name = "other", .members = {{.spec = space}}}), 1);
  UntilTold(4);
  Ask(asker, messages[2].number + 1);
  const std::vector<Message> more = Answer(asker);
  ASSERT_EQ(more.size(), 1u);
  EXPECT_FALSE(more[0].is_cleared());
}

TEST_F(KvEventPublisherTest, NumbersOfARestartedDaemonAreNotTheNextOnes) {
  Start();
  Publish(StreamOf("one"), 50);
  UntilTold(51);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const uint64_t last = Answer(asker).back().number;
  asker.close();
  Start();
  Publish(StreamOf("one"), 1);
  UntilTold(2);
  asker = Asker();
  Ask(asker, last + 1);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_GT(messages[0].number, last + 1) << "a subscriber sees that something is missing";
  EXPECT_TRUE(messages[0].is_cleared());
}

TEST_F(KvEventPublisherTest, WhoAsksForWhatIsNotKeptIsAnsweredFromWhereAllIsToldAnew) {
  config_.kv_events.replay_batches = 3;
  std::atomic<uint32_t> republications = 0;
  Start([&] {
    ++republications;
    TellAnew({Stored(one_, 7), Stored(one_, 8)});
  });
  one_ = StreamOf("one");
  Publish(one_, 5);
  Publish(StreamOf("two"), 5);
  UntilTold(12);
  zmq::socket_t subscriber = Subscriber();
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].topic, "kv@one");
  EXPECT_TRUE(messages[0].is_cleared() && messages[0].is_stored()) << "no view is ever empty";
  EXPECT_EQ(messages[1].topic, "kv@two");
  EXPECT_TRUE(messages[1].is_cleared() && !messages[1].is_stored());
  EXPECT_EQ(messages[1].number, messages[0].number + 1);
  EXPECT_EQ(republications, 1u);
  // The next one is told what there is already.
  Ask(asker, 0);
  EXPECT_EQ(Answer(asker).size(), 2u);
  EXPECT_EQ(republications, 1u);
  Ask(asker, messages[1].number + 1);
  EXPECT_TRUE(Answer(asker).empty());
}

TEST_F(KvEventPublisherTest, WhoAsksEndsWithEveryBlockHoweverManyThereAreAndHowFewAreKept) {
  config_.kv_events.replay_batches = 1;
  std::atomic<uint32_t> republications = 0;
  Start([&] { ++republications; });
  one_ = StreamOf("one");
  Publish(one_, 5);
  UntilTold(6);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  Until([&] { return republications == 1; });
  constexpr uint64_t kBlocks = 600'000;
  TellAnewFlat(kBlocks);
  const std::vector<Message> messages = Answer(asker);
  uint64_t bytes = 0, stored = 0;
  for (const Message& message : messages) {
    bytes += message.payload.size();
    stored += message.StoredCount();
    EXPECT_EQ(message.number, messages[0].number + (&message - messages.data()));
  }
  EXPECT_GT(bytes, KvEventReplay::kBytesMax) << "or it shows nothing";
  EXPECT_EQ(stored, kBlocks);
  EXPECT_TRUE(messages[0].is_cleared());
  // The next one is told what there is.
  Publish(one_, 10);
  Ask(asker, 0);
  EXPECT_EQ(Answer(asker).size(), messages.size() + 10);
  EXPECT_EQ(republications, 1u);
}

TEST_F(KvEventPublisherTest, NoMessageIsLongerThanItsBound) {
  static_assert(KvEventPublisher::kMessagesPerSubscriberMax * KvEventPublisher::kMessageBytesMax <=
                128 * kMiB);
  Start();
  one_ = StreamOf("one");
  TellAnewFlat(50'000);
  std::vector<KvEvent> chain(50'000);
  for (uint64_t i = 0; i < chain.size(); ++i) {
    chain[i] = {.hash = UINT64_MAX - i, .parent_hash = UINT64_MAX - i + 1, .stream = one_};
  }
  TellAnew(chain);
  UntilTold(1 + 50'000 / 700 + 5);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  uint64_t largest_bytes = 0;
  for (const Message& message : Answer(asker)) {
    largest_bytes = std::max<uint64_t>(largest_bytes, message.payload.size());
  }
  EXPECT_LE(largest_bytes, KvEventPublisher::kMessageBytesMax);
  EXPECT_GT(largest_bytes, KvEventPublisher::kMessageBytesMax * 3 / 4) << "of a chain";
}

TEST_F(KvEventPublisherTest, WhoDoesNotReadCostsItsBoundAndEndsWithEveryBlock) {
  config_.kv_events.replay_batches = 10;
  Start();
  one_ = StreamOf("one");
  zmq::socket_t sleeper = Subscriber();
  Message message;
  do {
    Publish(one_, 1);
  } while (!Receive(sleeper, &message, milliseconds(20)));
  sleeper.close();
  sleeper = Subscriber(1);
  std::this_thread::sleep_for(milliseconds(200));
  constexpr uint64_t kBlocks = 100'000;  // 12 MiB
  TellAnewFlat(kBlocks);
  const uint64_t before_bytes = ResidentBytes();
  for (int i = 0; i < 25; ++i) TellAnewFlat(kBlocks);
  EXPECT_LT(ResidentBytes(), before_bytes + 160 * kMiB + kSanitizerBytes);
  // It sees that it has missed some.
  uint64_t last = 0, stored = 0;
  const auto take = [&](const Message& taken) {
    if (taken.is_cleared()) stored = 0;
    stored += taken.StoredCount();
    last = taken.number;
  };
  bool is_gap = false;
  while (!is_gap && Receive(sleeper, &message, milliseconds(1000))) {
    is_gap = last != 0 && message.number != last + 1;
    if (!is_gap) take(message);
  }
  zmq::socket_t asker = Asker();
  Ask(asker, last + 1);
  const std::vector<Message> messages = Answer(asker);
  for (const Message& each : messages) take(each);
  EXPECT_FALSE(messages.empty());
  EXPECT_EQ(stored, kBlocks);
  sleeper.close();
  Until([&] { return ResidentBytes() < before_bytes + 40 * kMiB + kSanitizerBytes; });
}

TEST_F(KvEventPublisherTest, AllIsToldAnewInOneMessageWithWhatChangedMeanwhile) {
  Start();
  one_ = StreamOf("one");
  Publish(one_, 1);
  UntilTold(2);
  publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllBegins}});
  // Each turn of the store some, many more than a message has else.
  for (uint64_t hash = 1; hash <= 2000; ++hash) {
    publisher_->Publish(
        std::vector<KvEvent>{{.hash = hash, .parent_hash = hash - 1, .stream = one_}});
  }
  publisher_->Publish(
      std::vector<KvEvent>{{.hash = 3, .stream = one_, .kind = KvEvent::Kind::kRemoved}});
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(publisher_->counters().messages, 2u) << "nothing before all of it is there";
  publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllEnds}});
  UntilTold(3);
  Publish(one_, 1);
  UntilTold(4);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_TRUE(messages[2].is_cleared() && messages[2].is_stored());
  EXPECT_NE(messages[2].payload.find("BlockRemoved"), std::string::npos);
  EXPECT_FALSE(messages[3].is_cleared());
}

TEST_F(KvEventPublisherTest, WhatTakesTooLongToTellAnewIsSentAsItComes) {
  Start();
  one_ = StreamOf("one");
  Publish(one_, 1);
  publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllBegins}, Stored(one_, 7)});
  UntilTold(3);
  publisher_->Publish(std::vector<KvEvent>{Stored(one_, 8), {.kind = KvEvent::Kind::kAllEnds}});
  UntilTold(4);
  zmq::socket_t asker = Asker();
  Ask(asker, 0);
  const std::vector<Message> messages = Answer(asker);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_TRUE(messages[2].is_cleared() && messages[2].is_stored());
  EXPECT_TRUE(!messages[3].is_cleared() && messages[3].is_stored());
}

TEST_F(KvEventPublisherTest, AfterALossRoutersKeepTheirViewUntilTheyHaveAnotherOne) {
  Start([&] { TellAnew({Stored(one_, 7)}); });
  one_ = StreamOf("one");
  zmq::socket_t subscriber = Subscriber();
  Message message;
  do {  // the topic begins with a message that clears it
    Publish(one_, 1);
  } while (!Receive(subscriber, &message, milliseconds(20)) || message.is_cleared());
  publisher_->Publish(
      std::vector<KvEvent>(KvEventPublisher::kQueueMax + 1, KvEvent{.hash = 1, .stream = one_}));
  while (!message.is_cleared()) ASSERT_TRUE(Receive(subscriber, &message));
  EXPECT_TRUE(message.is_stored());
  EXPECT_EQ(publisher_->counters().republications, 1u);
}

TEST_F(KvEventPublisherTest, RoomIsKeptForWhatGoes) {
  Start();
  EXPECT_TRUE(publisher_->HasRoom(KvEventPublisher::kQueueMax - KvEventPublisher::kRemovalsMax));
  EXPECT_FALSE(
      publisher_->HasRoom(KvEventPublisher::kQueueMax - KvEventPublisher::kRemovalsMax + 1));
  one_ = StreamOf("one");
  publisher_->Publish(
      std::vector<KvEvent>(KvEventPublisher::kQueueMax, KvEvent{.hash = 1, .stream = one_}));
  EXPECT_EQ(publisher_->counters().lost, 0u);
}

TEST_F(KvEventPublisherTest, WhoAsksAndDoesNotReadHasSoManyRequestsAndNoMore) {
  config_.kv_events.replay_requests_max = 3;
  Start();
  const uint32_t stream = StreamOf("one");
  Publish(stream, 2000);
  UntilTold(2001);
  zmq::socket_t asker = Asker();
  for (int i = 0; i < 10; ++i) Ask(asker, 0);
  Until([&] { return publisher_->counters().replays_refused == 7; });
  EXPECT_EQ(publisher_->counters().replays, 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Answer(asker).size(), 2001u);
  Message message;
  EXPECT_FALSE(Receive(asker, &message, milliseconds(200))) << "what was refused is not answered";
  Ask(asker, 0);
  EXPECT_EQ(Answer(asker).size(), 2001u);
}

TEST_F(KvEventPublisherTest, MoreAskersThanPlacesAreRefusedAndABystanderHearsAll) {
  Start();
  const uint32_t stream = StreamOf("one");
  zmq::socket_t bystander = Subscriber();
  Message message;
  do {
    Publish(stream, 1);
  } while (!Receive(bystander, &message, milliseconds(20)));
  Publish(stream, 1000);
  std::vector<zmq::socket_t> askers;
  for (uint32_t i = 0; i < KvEventReplay::kPeersMax + 8; ++i) {
    askers.push_back(Asker());
    Ask(askers.back(), 0);
  }
  Until([&] {
    const KvEventCounters counters = publisher_->counters();
    return counters.replays + counters.replays_refused == askers.size();
  });
  EXPECT_EQ(publisher_->counters().replays_refused, 8u);
  // No more than a subscriber may have unread.
  ExpectNext(bystander, message.number, 1000);
  Publish(stream, 1000);
  ExpectNext(bystander, message.number + 1000, 1000);
}

TEST_F(KvEventPublisherTest, WhatIsNoRequestIsPassedOver) {
  Start();
  Publish(StreamOf("one"), 1);
  UntilTold(2);
  zmq::socket_t asker = Asker();
  const auto send = [&](const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      asker.send(zmq::buffer(parts[i]),
                 i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  };
  send({""});
  send({"", "7"});
  send({"x", "12345678"});
  send({"", "12345678", "more"});
  send(std::vector<std::string>(3000, "12345678"));
  Ask(asker, 0);
  EXPECT_EQ(Answer(asker).size(), 2u);
  EXPECT_EQ(publisher_->counters().replays_refused, 5u);
}

// A connection over TCP that says hello as ZMTP 3.0 wants it.
class RawPeer {
 public:
  RawPeer(uint16_t port, const std::string& socket_type)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address{.sin_family = AF_INET,
                              .sin_port = htons(port),
                              .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    std::string greeting(64, '\0');
    greeting[0] = '\xff';
    greeting[9] = '\x7f';
    greeting[10] = 3;
    greeting.replace(12, 4, "NULL");
    const std::string name = "Socket-Type";
    const std::string body = std::string("\x05READY") + static_cast<char>(name.size()) + name +
                             std::string(3, '\0') + static_cast<char>(socket_type.size()) +
                             socket_type;
    // Who goes on before the other end is READY, too, is hung up on for that.
    is_ready_ = Send(greeting + '\x04' + static_cast<char>(body.size()) + body) &&
                Read(greeting.size()).size() == greeting.size();
    const std::string header = Read(2);
    if (header.size() == 2) Read(static_cast<uint8_t>(header[1]));
  }
  ~RawPeer() { close(fd_); }
  bool is_ready() const { return is_ready_; }
  // False: it was hung up on.
  bool Send(const std::string& bytes) {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // As much of `bytes`, over and over, as goes without waiting. False: it was hung up on.
  bool SendEndless(const std::string& bytes) {
    while (true) {
      const ssize_t sent = send(fd_, bytes.data() + sent_bytes_, bytes.size() - sent_bytes_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN;
      sent_bytes_ = (sent_bytes_ + static_cast<size_t>(sent)) % bytes.size();
    }
  }
  bool IsHungUp() {
    char bytes[4096];
    pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
    while (poll(&readable, 1, 10'000) == 1) {
      if (read(fd_, bytes, sizeof(bytes)) <= 0) return true;
    }
    return false;
  }

 private:
  std::string Read(size_t byte_count) {
    std::string bytes(byte_count, '\0');
    const ssize_t read_bytes = recv(fd_, bytes.data(), byte_count, MSG_WAITALL);
    bytes.resize(read_bytes < 0 ? 0 : static_cast<size_t>(read_bytes));
    return bytes;
  }

  const int fd_;
  bool is_ready_ = false;
  size_t sent_bytes_ = 0;  // of what is sent endlessly
};

class KvEventPublisherOverTcp : public KvEventPublisherTest {
 protected:
  void StartOverTcp() {
    for (port_ = 26'000 + static_cast<uint16_t>(getpid() % 20'000);; port_ += 2) {
      config_.kv_events.endpoint = "tcp://127.0.0.1:" + std::to_string(port_);
      config_.kv_events.replay_endpoint = "tcp://127.0.0.1:" + std::to_string(port_ + 1);
      publisher_ = std::make_unique<KvEventPublisher>(config_, [] {});
      std::string why;
      if (publisher_->Start(&why).ok() && publisher_->counters().is_on) return;
      ASSERT_LT(port_, 60'000) << why;
    }
  }
  // The publisher's thread counts what it ends a moment after the peer sees it.
  bool HaveEnded(uint64_t peer_count) const {
    for (int i = 0; i < 300 && publisher_->counters().peers_ended < peer_count; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    return publisher_->counters().peers_ended == peer_count;
  }
  uint16_t port_ = 0;
};

TEST_F(KvEventPublisherOverTcp, AFrameThatIsTooLongEndsItsConnection) {
  StartOverTcp();
  RawPeer subscriber(port_, "SUB");
  RawPeer asker(port_ + 1, "DEALER");
  for (RawPeer* peer : {&subscriber, &asker}) {
    ASSERT_TRUE(peer->is_ready());
    ASSERT_TRUE(peer->Send(std::string("\x02\0\0\0\0\x40\0\0\0", 9)));  // 1 GiB follow
    EXPECT_TRUE(peer->IsHungUp());
  }
}

TEST_F(KvEventPublisherOverTcp, AMessageThatNeverEndsCostsItsConnectionAndLittleMemory) {
  StartOverTcp();
  const uint32_t stream = StreamOf("one");
  zmq::socket_t bystander = Subscriber();
  Message message;
  do {
    Publish(stream, 1);
  } while (!Receive(bystander, &message, milliseconds(20)));
  const uint64_t before_bytes = ResidentBytes();
  std::string parts;
  for (int i = 0; i < 20'000; ++i) parts += std::string("\x01\x01x", 3);  // more follow
  RawPeer subscriber(port_, "SUB");
  RawPeer asker(port_ + 1, "DEALER");
  const auto end = std::chrono::steady_clock::now() + seconds(3);
  ASSERT_TRUE(subscriber.is_ready() && asker.is_ready());
  bool is_heard = true;
  while (is_heard && std::chrono::steady_clock::now() < end) {
    is_heard = subscriber.SendEndless(parts);
    is_heard |= asker.SendEndless(parts);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(HaveEnded(2)) << "both were hung up on";
  EXPECT_LT(ResidentBytes(), before_bytes + 192 * kMiB) << "what comes between two looks";
  Publish(stream, 100);
  ExpectNext(bystander, message.number, 100);
}

TEST_F(KvEventPublisherOverTcp, OneConnectionTooManyIsEndedAndTheOthersStay) {
  StartOverTcp();
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (uint32_t i = 0; i < KvEventPeers::kPeersMax; ++i) {
    peers.push_back(std::make_unique<RawPeer>(port_, "SUB"));
  }
  RawPeer one_too_many(port_, "SUB");
  EXPECT_TRUE(one_too_many.IsHungUp());
  EXPECT_TRUE(HaveEnded(1));
  peers.pop_back();  // its place is free
  std::this_thread::sleep_for(milliseconds(300));
  RawPeer another(port_, "SUB");
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_TRUE(HaveEnded(1));
}

TEST_F(KvEventPublisherTest, AnExceptionEndsTheEventsAndNothingElse) {
  Start([] { throw std::runtime_error("planted"); });
  const uint32_t stream = StreamOf("one");
  publisher_->Publish(
      std::vector<KvEvent>(KvEventPublisher::kQueueMax + 1, KvEvent{.hash = 1, .stream = stream}));
  Until([&] { return !publisher_->counters().is_on; });
  const uint64_t lost_before = publisher_->counters().lost;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(publisher_->HasRoom(KvEventPublisher::kQueueMax)) << "nobody waits for it";
    publisher_->Publish(std::vector<KvEvent>(1000, KvEvent{.hash = 1, .stream = stream}));
  }
  EXPECT_EQ(publisher_->counters().lost, lost_before + 3000);
}

TEST_F(KvEventPublisherTest, WhatWaitedAtTheEndKeepsNobodyWaiting) {
  uint32_t stream = 0;
  Start([&] {
    publisher_->Publish(std::vector<KvEvent>(1000, KvEvent{.hash = 1, .stream = stream}));
    throw std::runtime_error("planted");
  });
  stream = StreamOf("one");
  publisher_->Publish(
      std::vector<KvEvent>(KvEventPublisher::kQueueMax + 1, KvEvent{.hash = 1, .stream = stream}));
  Until([&] { return !publisher_->counters().is_on; });
  EXPECT_TRUE(publisher_->HasRoom(KvEventPublisher::kQueueMax));
}

TEST_F(KvEventPublisherOverTcp, APortThatIsTakenIsTriedAgainAndHoldsUpNobody) {
  auto taker = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::pub);
  taker->set(zmq::sockopt::linger, 0);
  taker->bind("tcp://127.0.0.1:*");
  config_.kv_events.replay_endpoint = taker->get(zmq::sockopt::last_endpoint);
  Start();
  EXPECT_FALSE(publisher_->counters().is_on);
  EXPECT_FALSE(publisher_->counters().has_ended);
  const uint32_t stream = StreamOf("one");
  // More than the queue holds: it is emptied all the same.
  Publish(stream, KvEventPublisher::kQueueMax / 512 + 1);
  EXPECT_EQ(publisher_->counters().messages, 0u);
  taker.reset();
  Until([&] { return publisher_->counters().is_on; });
  zmq::socket_t subscriber = Subscriber();
  Message message;
  Until([&] {
    Publish(stream, 1);
    return Receive(subscriber, &message, milliseconds(20));
  });
}

TEST_F(KvEventPublisherTest, AnErrorOfZeroMqIsNotTheEnd) {
  std::atomic<uint32_t> calls = 0;
  Start([&] {
    if (++calls <= 2) throw zmq::error_t(ENOTSOCK);
  });
  const uint32_t stream = StreamOf("one");
  zmq::socket_t subscriber = Subscriber();
  const auto lose_some = [&] {
    publisher_->Publish(std::vector<KvEvent>(KvEventPublisher::kQueueMax + 1,
                                             KvEvent{.hash = 1, .stream = stream}));
  };
  for (uint64_t error = 1; error <= 2; ++error) {
    lose_some();
    Until([&] { return publisher_->counters().errors == error; });
  }
  EXPECT_TRUE(publisher_->counters().is_on);
  Message message;
  do {  // it connects again
    Publish(stream, 1);
  } while (!Receive(subscriber, &message, milliseconds(20)));
  EXPECT_EQ(message.topic, "kv@one");
  // What the sockets before had been asked is lost with them: a router asks again.
  zmq::socket_t asker = Asker();
  Message answer;
  Until([&] {
    Ask(asker, message.number);
    return Receive(asker, &answer, milliseconds(500));
  });
  EXPECT_EQ(answer.number, message.number);
}

}  // namespace
}  // namespace terrace
