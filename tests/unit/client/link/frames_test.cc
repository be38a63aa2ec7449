// FrameReader and FrameSender on bytes and a socket pair.
#include "client/link/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "client/core/replies.h"
#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using protocol::Verb;
using testing::HasSubstr;
using Next = FrameReader::Next;

class Frames : public testing::Test {
 protected:
  void Feed(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::span<std::byte> space = reader_.WritableSpace();
      const size_t taken = std::min(space.size(), bytes.size());
      std::copy_n(bytes.begin(), taken, space.begin());
      reader_.Advance(taken);
      bytes = bytes.subspan(taken);
    }
  }

  ScriptedDaemon daemon_;
  FrameReader reader_{protocol::kFrameBytesMax};
  Message message_;
  std::string why_;
};

TEST_F(Frames, PagesAreConcatenatedHoweverTheyArrive) {
  std::vector<std::byte> body(100'000);
  for (size_t i = 0; i < body.size(); ++i) body[i] = std::byte(i * 7);
  const std::vector<std::byte> frames =
      daemon_.Frames(Verb::kQuery, 3, StatusCode::kOk, body, 1'000);
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    size_t messages = 0;
    for (size_t fed = 0; fed < frames.size();) {
      const size_t piece = std::min<size_t>(frames.size() - fed, 1 + random() % 5'000);
      Feed(std::span(frames).subspan(fed, piece));
      fed += piece;
      while (true) {
        const Next next = reader_.Take(&message_, &why_);
        ASSERT_NE(next, Next::kGarbled) << why_;
        if (next == Next::kNeedsBytes) break;
        ++messages;
        ASSERT_TRUE(
            std::equal(body.begin(), body.end(), message_.body.begin(), message_.body.end()));
      }
    }
    EXPECT_EQ(messages, 1u);
  }
}

TEST_F(Frames, WhatNoDaemonSendsIsNamed) {
  const std::vector<std::byte> right = daemon_.Frames(Verb::kMatch, 3, StatusCode::kOk, {});
  const auto fails_with = [&](size_t offset, uint8_t value) {
    reader_ = FrameReader(protocol::kFrameBytesMax);
    std::vector<std::byte> wrong = right;
    wrong[offset] = std::byte{value};
    Feed(wrong);
    why_.clear();
    EXPECT_EQ(reader_.Take(&message_, &why_), Next::kGarbled) << offset;
    return why_;
  };
  EXPECT_THAT(fails_with(0, 15), HasSubstr("frame_bytes 15"));
  EXPECT_THAT(fails_with(3, 1), HasSubstr("frame_bytes 16777248"));
  EXPECT_THAT(fails_with(4, 2), HasSubstr("version 2"));
  EXPECT_THAT(fails_with(5, 63), HasSubstr("verb 63"));
  EXPECT_THAT(fails_with(6, 2), HasSubstr("flags 2"));
  EXPECT_THAT(fails_with(24, 10), HasSubstr("status 10"));
}

TEST_F(Frames, AMessageLargerThanTheLimitIsRefused) {
  const std::vector<std::byte> body(protocol::kMessageBytesMax);
  const std::vector<std::byte> frames = daemon_.Frames(Verb::kQuery, 3, StatusCode::kOk, body);
  Next next = Next::kNeedsBytes;
  for (size_t fed = 0; fed < frames.size() && next == Next::kNeedsBytes; fed += 1'000) {
    Feed(std::span(frames).subspan(fed, std::min<size_t>(1'000, frames.size() - fed)));
    next = reader_.Take(&message_, &why_);
  }
  EXPECT_EQ(next, Next::kGarbled);
  EXPECT_THAT(why_, HasSubstr("16777216"));
}

TEST_F(Frames, PagesOfTwoMessagesDoNotMix) {
  std::vector<std::byte> frames =
      daemon_.Frames(Verb::kQuery, 3, StatusCode::kOk, std::vector<std::byte>(100), 64);
  frames[64 + 8] = std::byte{4};
  Feed(frames);
  EXPECT_EQ(reader_.Take(&message_, &why_), Next::kGarbled);
  EXPECT_THAT(why_, HasSubstr("request 3"));
}

TEST_F(Frames, WhatTheSocketDoesNotTakeIsKeptInOrder) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  FrameSender sender(4'096);
  std::vector<std::byte> body(3 << 20);
  for (size_t i = 0; i < body.size(); ++i) body[i] = std::byte(i >> 8);
  Outgoing message{.verb = Verb::kQuery, .request_id = 9, .parts = {}};
  message.parts = {std::span<const std::byte>(body).first(100'001),
                   std::span<const std::byte>(body).subspan(100'001)};
  ASSERT_TRUE(sender.Send(sockets[0], message, 4 << 20).ok());
  EXPECT_GT(sender.unsent_bytes(), 0u);
  EXPECT_EQ(sender.Send(sockets[0], message, 4 << 20).code(), StatusCode::kBusy);
  std::vector<std::byte> received;
  std::vector<std::byte> space(10'000);
  while (true) {
    const ssize_t count = recv(sockets[1], space.data(), space.size(), MSG_DONTWAIT);
    if (count > 0) received.insert(received.end(), space.begin(), space.begin() + count);
    if (count <= 0 && sender.unsent_bytes() == 0) break;
    ASSERT_NE(sender.Flush(sockets[0]).code(), StatusCode::kGone);
  }
  std::vector<std::byte> joined;
  for (size_t at = 0; at < received.size();) {
    protocol::FrameHeader header;
    std::memcpy(&header, received.data() + at, sizeof(header));
    ASSERT_LE(header.frame_bytes, 4'096u);
    const auto first = received.begin() + static_cast<ptrdiff_t>(at);
    joined.insert(joined.end(), first + sizeof(header), first + header.frame_bytes);
    at += header.frame_bytes;
    EXPECT_EQ((header.flags & protocol::kFrameMore) != 0, at < received.size());
  }
  EXPECT_EQ(joined, body);
  close(sockets[1]);
  EXPECT_EQ(sender.Send(sockets[0], message, 4 << 20).code(), StatusCode::kGone);
  close(sockets[0]);
}

// Decoders on bodies with bytes changed at random: what they accept fits what was asked.
// PROMISE: T29 the client's decoders
TEST_F(Frames, DecodersAcceptOnlyWhatFits) {
  std::mt19937_64 random(7);
  std::vector<protocol::BlockSpan> spans;
  std::vector<SlotAddress> slots;
  std::vector<protocol::ReservedKey> keys;
  std::vector<SlotRef> refs;
  for (int round = 0; round < 20'000; ++round) {
    const auto count = static_cast<uint32_t>(1 + random() % 8);
    const bool is_acquire = round % 2 == 0;
    std::vector<std::byte> body =
        is_acquire ? daemon_.AcquireBody(count, count / 2) : daemon_.ReserveBody(count);
    for (uint64_t i = random() % 4; i-- > 0;) {
      body[random() % body.size()] = std::byte(random() % 4 == 0 ? 255 : random() % 16);
    }
    if (random() % 4 == 0) body.resize(random() % (body.size() + 32));
    const Asked asked{.verb = is_acquire ? Verb::kAcquire : Verb::kReserve, .key_count = count};
    spans.clear();  // what is decoded is appended: an answer may come in pages
    slots.clear();
    keys.clear();
    refs.clear();
    if (is_acquire) {
      AcquireAnswer answer{.reply = {}, .spans = &spans, .slots = &slots};
      if (DecodeAcquire(body, asked, &answer) != nullptr) continue;
      EXPECT_LE(answer.reply.block_count, count);
      EXPECT_EQ(slots.size() % std::max(answer.reply.block_count, 1u), 0u);
      uint64_t covered = 0;
      for (const protocol::BlockSpan& span : spans) covered += span.block_count;
      EXPECT_EQ(covered, answer.reply.block_count);
    } else {
      ReserveAnswer answer{.reply = {}, .keys = &keys, .slots = &refs};
      if (DecodeReserve(body, asked, &answer) != nullptr) continue;
      EXPECT_EQ(keys.size(), count);
    }
  }
}

}  // namespace
}  // namespace terrace::client
