// Routers that ask for KV events again, over real sockets inside the process: what they ask for has
// any form and any number of parts, some do not read, some go. What is answered is what was kept,
// in order, and no more than was asked for.
#include <endian.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "daemon/events/kv_event_replay.h"
#include "fuzz/fuzz.h"

namespace terrace::fuzz::kv_replay {

constexpr uint32_t kPeers = 3;
constexpr uint32_t kBatchesMax = 6;
constexpr uint32_t kRequestsPerPeerMax = 2;
constexpr uint64_t kFirstSequence = 5;
constexpr uint64_t kEndOfReplay = UINT64_MAX;
constexpr int kUnreadMax = 4;
constexpr uint32_t kStepsMax = 200;
constexpr int kSocketTries = 10'000;
constexpr const char* kCleared = "cleared";

zmq::context_t& Context() {
  // Inside the process: nobody else's threads. Sockets that are closed go a while later.
  static zmq::context_t context(0, 16'384);
  return context;
}

// Those that were closed may be there still, where a thread of the library's has not come to it.
std::unique_ptr<zmq::socket_t> NewSocket(zmq::socket_type type) {
  for (int tries = 0;; ++tries) {
    try {
      return std::make_unique<zmq::socket_t>(Context(), type);
    } catch (const zmq::error_t& error) {
      Require(error.num() == EMFILE && tries < kSocketTries, error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// What libFuzzer's clock has interrupted is done again.
template <typename Call>
auto Uninterrupted(const Call& call) {
  while (true) {
    try {
      return call();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

class World {
 public:
  World() {
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.set(zmq::sockopt::sndhwm, kUnreadMax);
    router_.set(zmq::sockopt::linger, 0);
    Uninterrupted([&] { router_.bind(address_); });
    for (uint32_t peer = 0; peer < kPeers; ++peer) Connect(peer);
  }

  void Step(Choices& choices) {
    const uint32_t peer = choices.Below(kPeers);
    switch (choices.Below(10)) {
      case 0:
        return Ask(peer, choices);
      case 1:
        return Keep(choices);
      case 2:
        return Receive();
      case 3:
        return Send();
      case 4:
        return Read(peer);
      case 5:
        now_us_ += uint64_t{choices.Byte()} << 18;
        return;
      case 6:
        peers_[peer].socket.reset();
        return Connect(peer);
      case 7:
        replay_.DropPeers();
        return ExpectAnything();
      case 8:
        return replay_.ForgetTopic(TopicOf(choices));
      case 9:  // a publisher that ends in the midst of it
        replay_.BeginWhole();
        KeepOne("a", kCleared);
        return replay_.AbandonWhole();
    }
  }

  // Everybody reads until nobody waits.
  void End() {
    for (uint32_t i = 0; i < kStepsMax && (i < kPeers || replay_.has_work()); ++i) {
      Receive();
      Send();
      for (uint32_t peer = 0; peer < kPeers; ++peer) Read(peer);
      now_us_ += KvEventReplay::kUnreadUsMax / 2;
    }
    Require(!replay_.has_work(), "somebody is still answered");
    const KvEventReplayCounters& counters = replay_.counters();
    Require(CountedRequests() <= asked_, "more was counted than was asked");
    Require(counters.requests + counters.refused <= right_, "what is no request was taken for one");
    // Each request: what is kept, what is taken back, and an end.
    Require(heard_ <= counters.requests * (kBatchesMax + kept_.size() + 2 * topics_.size() + 1),
            "more was answered than was asked for");
    Require(ends_ <= counters.requests, "more ends than requests");
  }

 private:
  struct Peer {
    std::unique_ptr<zmq::socket_t> socket;
    uint64_t last = 0;         // number heard since an end
    bool is_in_order = false;  // nothing was lost since
  };
  struct Kept {
    std::string topic, payload;
  };

  uint64_t CountedRequests() const {
    const KvEventReplayCounters& counters = replay_.counters();
    return counters.requests + counters.refused + counters.malformed;
  }

  void Connect(uint32_t peer) {
    Peer& made = peers_[peer];
    made = {};
    made.socket = NewSocket(zmq::socket_type::dealer);
    // A new name each time: ROUTER believes the old one while its connection lasts.
    made.socket->set(zmq::sockopt::routing_id, "r" + std::to_string(next_name_++));
    made.socket->set(zmq::sockopt::rcvhwm, 1);
    made.socket->set(zmq::sockopt::linger, 0);
    Uninterrupted([&] { made.socket->connect(address_); });
  }

  // [parts, 0: as a router asks; the number asked for; else each part's length and bytes]
  void Ask(uint32_t peer, Choices& choices) {
    const uint32_t part_count = choices.Below(6);
    std::vector<std::string> parts;
    if (part_count == 0) {
      const uint64_t wire =
          htobe64(choices.Byte() == 255 ? choices.Number<uint64_t>() : uint64_t{choices.Byte()});
      parts = {"", std::string(reinterpret_cast<const char*>(&wire), sizeof(wire))};
    }
    for (uint32_t i = 0; i < part_count; ++i) {
      parts.emplace_back(TextOf(choices.Take(choices.Below(20))));
    }
    if (parts.size() == 2 && parts[0].empty() && parts[1].size() == sizeof(uint64_t)) ++right_;
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool is_last = i + 1 == parts.size();
      const auto flags = is_last ? zmq::send_flags::dontwait
                                 : zmq::send_flags::dontwait | zmq::send_flags::sndmore;
      const auto send = [&] { return peers_[peer].socket->send(zmq::buffer(parts[i]), flags); };
      if (!Uninterrupted(send)) return;
    }
    ++asked_;
  }

  static std::string TopicOf(Choices& choices) {
    return std::string(1, static_cast<char>('a' + choices.Below(3)));
  }

  void Keep(Choices& choices) {
    const std::string topic = TopicOf(choices);
    const std::string payload(TextOf(choices.Take(choices.Below(9))));
    KeepOne(topic, payload);
  }

  void KeepOne(const std::string& topic, const std::string& payload) {
    kept_[replay_.next_sequence()] = {topic, payload};
    topics_.insert(topic);
    replay_.Keep(topic, zmq::message_t(payload.data(), payload.size()));
  }

  void Receive() {
    const uint64_t before = CountedRequests();
    replay_.Receive(router_);
    Require(CountedRequests() - before <= KvEventReplay::kRequestsPerTurnMax, "a turn too long");
  }

  // Requests were given up: what was sent before may still be read, others may begin anywhere.
  void ExpectAnything() {
    for (uint32_t peer = 0; peer < kPeers; ++peer) Read(peer);
    for (Peer& peer : peers_) peer.is_in_order = false;
  }

  void Send() {
    const uint64_t abandoned = replay_.counters().abandoned;
    (void)replay_.Send(router_, now_us_);
    if (replay_.counters().abandoned != abandoned) ExpectAnything();
    if (replay_.wants_all() && ++unheard_ % 4 == 0) TellAnew();
  }

  // As a publisher does, which may tell more than is kept.
  void TellAnew() {
    replay_.BeginWhole();
    for (uint64_t i = 0; i <= unheard_ % (kBatchesMax + 2); ++i) KeepOne("a", kCleared);
    replay_.EndWhole();
  }

  void Read(uint32_t peer) {
    for (uint32_t i = 0; i < KvEventReplay::kMessagesPerTurnMax + kUnreadMax; ++i) {
      std::vector<std::string> parts;
      zmq::message_t part;
      do {
        const auto receive = [&] {
          return peers_[peer].socket->recv(part, zmq::recv_flags::dontwait);
        };
        if (!Uninterrupted(receive)) return;
        parts.push_back(part.to_string());
      } while (part.more());
      Hear(&peers_[peer], parts);
    }
  }

  void Hear(Peer* peer, const std::vector<std::string>& parts) {
    Require(parts.size() == 4 && parts[0].empty() && parts[2].size() == sizeof(uint64_t),
            "an answer of another form");
    uint64_t number = 0;
    std::memcpy(&number, parts[2].data(), sizeof(number));
    number = be64toh(number);
    ++heard_;
    if (number == kEndOfReplay) {
      Require(parts[1].empty() && parts[3].empty(), "an end that says something");
      ++ends_;
      peer->last = 0;
      peer->is_in_order = true;
      return;
    }
    Require(!peer->is_in_order || number >= peer->last, "numbers that go back");
    peer->last = number;
    if (parts[3] == kCleared && topics_.contains(parts[1])) return;
    const auto kept = kept_.find(number);
    Require(
        kept != kept_.end() && kept->second.topic == parts[1] && kept->second.payload == parts[3],
        "an answer that was never kept");
  }

  static std::string NewAddress() {
    static uint64_t count = 0;
    return "inproc://replay" + std::to_string(count++);
  }

  const std::string address_ = NewAddress();
  zmq::socket_t router_ = std::move(*NewSocket(zmq::socket_type::router));
  KvEventReplay replay_{{.batches_max = kBatchesMax,
                         .requests_per_peer_max = kRequestsPerPeerMax,
                         .first_sequence = kFirstSequence,
                         .cleared = kCleared}};
  std::array<Peer, kPeers> peers_;
  std::map<uint64_t, Kept> kept_;
  std::set<std::string> topics_;
  uint64_t now_us_ = 1;
  uint64_t next_name_ = 0;
  uint64_t unheard_ = 0;  // turns in which somebody waited for all to be told anew
  uint64_t asked_ = 0, heard_ = 0, ends_ = 0;
  uint64_t right_ = 0;  // of those that were asked, sent or not: as a router asks
};

constexpr uint8_t kAsk = 0, kKeep = 1, kReceive = 2, kSend = 3, kRead = 4, kTime = 5, kGo = 6,
                  kForget = 8, kAbandon = 9;

std::vector<Seed> Seeds() {
  ChoiceWriter plain, lost, malformed, forgotten, anew, tired, crowd;
  const auto keep = [](ChoiceWriter* writer, uint8_t count) {
    for (uint8_t i = 0; i < count; ++i) {
      writer->Byte(0).Byte(kKeep).Byte(i).Byte(2).Byte('p').Byte(i);
    }
  };
  keep(&plain, 3);
  plain.Byte(0).Byte(kAsk).Byte(0).Byte(0).Byte(6).Byte(0).Byte(kReceive).Byte(0).Byte(kSend);
  plain.Byte(0).Byte(kRead);
  keep(&lost, 9);
  for (uint8_t peer = 0; peer < kPeers; ++peer) {
    lost.Byte(peer).Byte(kAsk).Byte(0).Byte(0).Byte(0);
  }
  lost.Byte(0).Byte(kReceive).Byte(0).Byte(kSend).Byte(1).Byte(kGo).Byte(0).Byte(kSend);
  malformed.Byte(0).Byte(kAsk).Byte(5);
  malformed.Byte(0).Byte(0).Byte(8).Append("12345678").Byte(1).Byte('x').Byte(0);
  malformed.Byte(0).Byte(kAsk).Byte(2).Byte(0).Byte(7).Append("1234567");
  keep(&forgotten, 3);
  for (uint8_t topic = 0; topic < 3; ++topic) forgotten.Byte(0).Byte(kForget).Byte(topic);
  keep(&forgotten, 1);
  // More than is kept: of the topics that were forgotten nothing is left.
  for (uint8_t i = 0; i < 9; ++i) {
    forgotten.Byte(0).Byte(kKeep).Byte(0).Byte(1).Byte(i).Byte(0).Byte(kAbandon);
  }
  for (uint8_t topic = 0; topic < 3; ++topic) forgotten.Byte(0).Byte(kForget).Byte(topic);
  // More than a peer may have waiting.
  for (uint8_t i = 0; i < 2 * kRequestsPerPeerMax; ++i) {
    forgotten.Byte(1).Byte(kAsk).Byte(0).Byte(0).Byte(0);
  }
  forgotten.Byte(0).Byte(kReceive).Byte(0).Byte(kSend);
  // Told anew, and then as much as lets go of that; more peers than may be there.
  keep(&anew, 9);
  anew.Byte(0).Byte(kAsk).Byte(0).Byte(0).Byte(0).Byte(0).Byte(kReceive);
  for (int i = 0; i < 4; ++i) anew.Byte(0).Byte(kSend).Byte(0).Byte(kRead);
  keep(&anew, 20);
  // Nobody tells it anew in time.
  keep(&tired, 9);
  tired.Byte(0).Byte(kAsk).Byte(0).Byte(0).Byte(0).Byte(0).Byte(kReceive);
  for (int i = 0; i < 3; ++i) tired.Byte(0).Byte(kSend).Byte(0).Byte(kTime).Byte(255);
  for (uint32_t i = 0; i <= KvEventReplay::kPeersMax; ++i) {
    crowd.Byte(0).Byte(kGo).Byte(0).Byte(kAsk).Byte(0).Byte(0).Byte(5).Byte(0).Byte(kReceive);
  }
  return {{"told_anew", anew.Take()},     {"tired", tired.Take()}, {"crowd", crowd.Take()},
          {"asked", plain.Take()},        {"lost", lost.Take()},   {"malformed", malformed.Take()},
          {"forgotten", forgotten.Take()}};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  World world;
  for (uint32_t i = 0; i < kStepsMax && !choices.is_empty(); ++i) world.Step(choices);
  world.End();
  return true;
}

// PROMISE: T29 routers that ask for events again
const Registration registration({"kv_replay", Run, Seeds});

}  // namespace terrace::fuzz::kv_replay
