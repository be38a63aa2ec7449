// Subscribers over TCP on this host, by a clock of the test's own.
#include "daemon/events/kv_event_peers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <zmq.hpp>

namespace terrace {
namespace {

TEST(KvEventPeers, WhoTakesNothingOfWhatIsSentIsEndedAndWhoHearsNothingIsNot) {
  zmq::context_t context;
  zmq::socket_t publisher(context, zmq::socket_type::pub);
  publisher.set(zmq::sockopt::linger, 0);
  KvEventPeers peers(context, publisher, "test");
  publisher.bind("tcp://127.0.0.1:*");
  const std::string endpoint = publisher.get(zmq::sockopt::last_endpoint);

  zmq::context_t others;
  zmq::socket_t reader(others, zmq::socket_type::sub);
  zmq::socket_t sleeper(others, zmq::socket_type::sub);
  for (zmq::socket_t* socket : {&reader, &sleeper}) {
    socket->set(zmq::sockopt::linger, 0);
    socket->set(zmq::sockopt::rcvhwm, 1);
    socket->set(zmq::sockopt::subscribe, socket == &reader ? "nothing" : "");
    socket->connect(endpoint);
  }
  uint64_t now_us = 1;
  const auto look_after = [&](uint64_t us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    now_us += us;
    return peers.Look(now_us);
  };
  EXPECT_EQ(look_after(KvEventPeers::kBetweenLooksUs), 0u);
  EXPECT_EQ(look_after(2 * KvEventPeers::kUnreadUsMax), 0u) << "neither was sent anything";
  const std::string large(kMiB, 'x');
  for (int i = 0; i < 64; ++i) publisher.send(zmq::buffer(large), zmq::send_flags::none);
  EXPECT_EQ(look_after(KvEventPeers::kBetweenLooksUs), 0u);
  EXPECT_EQ(look_after(KvEventPeers::kUnreadUsMax / 2), 0u);
  uint32_t ended_count = 0;  // once the system holds all that it takes for somebody
  for (int i = 0; i < 60 && ended_count == 0; ++i) {
    ended_count = look_after(KvEventPeers::kUnreadUsMax + 1);
  }
  EXPECT_EQ(ended_count, 1u);
  EXPECT_TRUE(peers.has_any()) << "the other one stays";
}

}  // namespace
}  // namespace terrace
