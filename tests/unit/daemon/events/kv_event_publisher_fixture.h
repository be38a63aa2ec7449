// A publisher, and routers over real sockets.
#pragma once

#include <endian.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "daemon/events/kv_event_publisher.h"

namespace terrace {

class KvEventPublisherTest : public ::testing::Test {
 protected:
  using milliseconds = std::chrono::milliseconds;
  using seconds = std::chrono::seconds;
  static constexpr seconds kPatience{20};
  static constexpr uint64_t kEndOfReplay = UINT64_MAX;

  struct Message {
    std::string topic;
    uint64_t number = 0;
    std::string payload;

    bool is_stored() const { return payload.find("BlockStored") != std::string::npos; }
    bool is_cleared() const { return payload.find("AllBlocksCleared") != std::string::npos; }
    // Of blocks that do not follow each other.
    uint64_t StoredCount() const {
      uint64_t count = 0;
      for (size_t at = 0; (at = payload.find("BlockStored", at)) != std::string::npos; ++at)
        ++count;
      return count;
    }
  };

  KvEventPublisherTest() {
    char name[] = "/tmp/terrace_kv_events_XXXXXX";
    directory_ = mkdtemp(name);
    config_.domains.push_back({.name = "default"});
    config_.kv_events.endpoint = "ipc://" + directory_ + "/events";
    config_.kv_events.replay_endpoint = "ipc://" + directory_ + "/replay";
    config_.kv_events.topic = "kv@{model}";
  }
  ~KvEventPublisherTest() override {
    publisher_.reset();
    std::filesystem::remove_all(directory_);
  }

  void Start(std::function<void()> republish = [] {}) {
    publisher_.reset();
    publisher_ = std::make_unique<KvEventPublisher>(config_, std::move(republish));
    std::string why;
    ASSERT_TRUE(publisher_->Start(&why).ok()) << why;
  }
  uint32_t StreamOf(const std::string& model) {
    SpaceSpec space{.model = model, .block_tokens = 16};
    return publisher_->StreamOf(0, {.name = model, .members = {{.spec = space}}});
  }
  // So many messages, each of as many events as one holds.
  void Publish(uint32_t stream, uint32_t message_count) {
    for (uint32_t m = 0; m < message_count; ++m) {
      std::vector<KvEvent> events(512);
      for (KvEvent& event : events) {
        event = {.hash = hash_ + 1, .parent_hash = hash_, .stream = stream};
        ++hash_;
      }
      Until([&] { return publisher_->HasRoom(events.size()); });
      publisher_->Publish(events);
    }
  }
  static KvEvent Stored(uint32_t stream, uint64_t hash) { return {.hash = hash, .stream = stream}; }
  // As a store does.
  void TellAnew(std::vector<KvEvent> events) {
    publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllBegins}});
    publisher_->Publish(events);
    publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllEnds}});
  }
  // Blocks that do not follow each other, as a store that waits for room tells them.
  void TellAnewFlat(uint64_t block_count) {
    constexpr uint64_t kAtOnce = 1000;
    const uint64_t events_before = publisher_->counters().events;
    publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllBegins}});
    for (uint64_t told = 0; told < block_count; told += kAtOnce) {
      std::vector<KvEvent> events(kAtOnce);
      for (KvEvent& event : events) event = Stored(one_, UINT64_MAX - hash_++);
      Until([&] { return publisher_->HasRoom(events.size()); });
      publisher_->Publish(events);
    }
    publisher_->Publish(std::vector<KvEvent>{{.kind = KvEvent::Kind::kAllEnds}});
    Until([&] { return publisher_->counters().events >= events_before + block_count; });
  }
  template <typename IsTrue>
  void Until(const IsTrue& is_true) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!is_true()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "it never came true";
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  void UntilTold(uint64_t message_count) {
    Until([&] { return publisher_->counters().messages >= message_count; });
  }

  zmq::socket_t Subscriber(int unread_max = 0) {
    zmq::socket_t socket(context_, zmq::socket_type::sub);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvhwm, unread_max);
    socket.set(zmq::sockopt::subscribe, "kv@");
    socket.connect(config_.kv_events.endpoint);
    return socket;
  }
  zmq::socket_t Asker() {
    zmq::socket_t socket(context_, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvhwm, 1);
    socket.connect(config_.kv_events.replay_endpoint);
    return socket;
  }
  static void Ask(zmq::socket_t& asker, uint64_t first) {
    const uint64_t wire = htobe64(first);
    asker.send(zmq::const_buffer{}, zmq::send_flags::sndmore);
    asker.send(zmq::buffer(&wire, sizeof(wire)), zmq::send_flags::none);
  }
  // False once nothing has come for so long.
  static bool Receive(zmq::socket_t& socket, Message* message, milliseconds patience = kPatience) {
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    if (zmq::poll(&item, 1, patience) == 0) return false;
    std::vector<zmq::message_t> parts;
    if (!zmq::recv_multipart(socket, std::back_inserter(parts))) return false;
    if (parts.size() == 4) parts.erase(parts.begin());  // the empty one of an answer
    EXPECT_EQ(parts.size(), 3u);
    uint64_t number = 0;
    std::memcpy(&number, parts[1].data(), sizeof(number));
    *message = {parts[0].to_string(), be64toh(number), parts[2].to_string()};
    return true;
  }
  // The next messages are `count` with the numbers after `number`: none is missing.
  static void ExpectNext(zmq::socket_t& subscriber, uint64_t number, uint64_t count) {
    for (uint64_t next = number + 1; next <= number + count; ++next) {
      Message message;
      ASSERT_TRUE(Receive(subscriber, &message));
      ASSERT_EQ(message.number, next);
    }
  }
  // What is answered, without the last message.
  static std::vector<Message> Answer(zmq::socket_t& asker) {
    std::vector<Message> messages;
    Message message;
    while (Receive(asker, &message)) {
      if (message.number == kEndOfReplay) return messages;
      messages.push_back(message);
    }
    ADD_FAILURE() << "no last message after " << messages.size();
    return messages;
  }

  zmq::context_t context_;
  std::string directory_;
  DaemonConfig config_;
  std::unique_ptr<KvEventPublisher> publisher_;
  uint64_t hash_ = 1;
  uint32_t one_ = 0;  // a stream
};

}  // namespace terrace
