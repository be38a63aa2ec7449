#include "daemon/socket/socket_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// A client's end of its connection, and what the transport tells of it.
class SocketTransportEnds : public ::testing::Test {
 protected:
  static constexpr SessionId kSession = 7;

  SocketTransportEnds() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    client_fd_ = ends[1];
    transport_.Add({.session = kSession, .socket_fd = ends[0]});
  }
  ~SocketTransportEnds() override {
    Leave();
    if (life_fd_ >= 0) close(life_fd_);
  }
  void Leave() {
    if (client_fd_ >= 0) close(std::exchange(client_fd_, -1));
  }
  void LoseLife() { close(std::exchange(life_fd_, -1)); }
  // The session has the arena from now on, and the client its end of the life socket.
  void Attach() {
    const std::array<std::byte, 16> hello{};
    transport_.Send(kSession, hello, Transport::Attach::kArenaAndLife);
    std::array<std::byte, 16> got{};
    iovec piece{got.data(), got.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ASSERT_EQ(recvmsg(client_fd_, &message, MSG_CMSG_CLOEXEC), 16);
    ASSERT_NE(CMSG_FIRSTHDR(&message), nullptr);
    std::memcpy(&life_fd_, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(life_fd_));
  }
  void Poll() {
    loop_.restart();
    loop_.poll();
  }

  asio::io_context loop_;
  std::vector<std::pair<SessionId, CloseReason>> closed_;
  int dead_count_ = 0;
  int client_fd_ = -1;
  int life_fd_ = -1;
  SocketTransport transport_{
      loop_,
      {{}},
      {.on_bytes = [](SessionId, std::span<const std::byte>) { return true; },
       .on_hang_up = [](SessionId) {},
       .on_proof_of_death = [this](SessionId) { ++dead_count_; },
       .on_first_slot = [](SessionId, uint32_t, int, int) {},
       .on_close = [this](SessionId session,
                          CloseReason reason) { closed_.emplace_back(session, reason); },
       .on_forget = [](SessionId) {}}};
};

TEST_F(SocketTransportEnds, AClientThatClosesHasLeft) {
  Poll();
  EXPECT_THAT(closed_, IsEmpty());
  Leave();
  Poll();
  EXPECT_THAT(closed_, ElementsAre(Pair(kSession, CloseReason::kClientLeft)));
  EXPECT_EQ(dead_count_, 1);
}

// Whichever of its descriptors tells first.
TEST_F(SocketTransportEnds, AClientThatDiesHasLeftOnce) {
  Attach();
  Poll();
  EXPECT_THAT(closed_, IsEmpty());
  LoseLife();
  Poll();
  EXPECT_THAT(closed_, ElementsAre(Pair(kSession, CloseReason::kClientLeft)));
  Leave();
  Poll();
  EXPECT_EQ(closed_.size(), 1u);
  EXPECT_EQ(dead_count_, 1);
}

TEST_F(SocketTransportEnds, DeathAfterTheConnectionsEndIsNotAnotherEnd) {
  Attach();
  Leave();
  Poll();
  EXPECT_EQ(dead_count_, 0);
  LoseLife();
  Poll();
  EXPECT_THAT(closed_, ElementsAre(Pair(kSession, CloseReason::kClientLeft)));
  EXPECT_EQ(dead_count_, 1);
}

TEST_F(SocketTransportEnds, AClosedSessionHasNotLeftToo) {
  Attach();
  transport_.Close(kSession, CloseReason::kMalformed);
  LoseLife();
  Leave();
  Poll();
  EXPECT_THAT(closed_, ElementsAre(Pair(kSession, CloseReason::kMalformed)));
  EXPECT_EQ(dead_count_, 1);
}

TEST_F(SocketTransportEnds, ASessionThatDrainsHasNotLeftWhenItsClientDies) {
  Attach();
  const std::vector<std::byte> more_than_fits(8'000'000);
  ASSERT_GT(transport_.Send(kSession, more_than_fits, Transport::Attach::kNothing), 0u);
  transport_.Close(kSession, CloseReason::kMalformed);
  LoseLife();
  Poll();
  EXPECT_THAT(closed_, ElementsAre(Pair(kSession, CloseReason::kMalformed)));
  EXPECT_EQ(dead_count_, 1);
}

TEST_F(SocketTransportEnds, AClientThatNeverSaysHelloHasNotLeft) {
  transport_.CloseOverdue(kHelloTimeoutUs - 1);
  EXPECT_THAT(closed_, IsEmpty());
  transport_.CloseOverdue(kHelloTimeoutUs);
  EXPECT_THAT(closed_, ElementsAre(Pair(kSession, CloseReason::kNoHello)));
}

// A number that is no descriptor's is watched as little as one for which the kernel has no room.
TEST_F(SocketTransportEnds, WhatTheKernelDoesNotWatchIsClosedAndNobodyIsTold) {
  constexpr int kNone = 1'000'000;
  EXPECT_FALSE(transport_.Add({.session = kSession + 1, .socket_fd = kNone}));
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  EXPECT_FALSE(transport_.Add({.session = kSession + 1, .socket_fd = ends[0], .pidfd = kNone}));
  char byte;
  EXPECT_EQ(read(ends[1], &byte, 1), 0);
  close(ends[1]);
  Poll();
  EXPECT_THAT(closed_, IsEmpty());
  EXPECT_EQ(transport_.unsent_bytes_of(kSession + 1), 0u);
}

}  // namespace
}  // namespace terrace
