#include "daemon/session/frame_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "terrace/protocol_introspection.h"

namespace terrace {
namespace {

using protocol::FrameHeader;
using protocol::Verb;
using ::testing::HasSubstr;

std::vector<std::byte> Frame(FrameHeader header, std::span<const std::byte> body = {}) {
  header.frame_bytes = static_cast<uint32_t>(sizeof(header) + body.size());
  std::vector<std::byte> frame(header.frame_bytes);
  std::memcpy(frame.data(), &header, sizeof(header));
  if (!body.empty()) std::memcpy(frame.data() + sizeof(header), body.data(), body.size());
  return frame;
}

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> Content(const MessageBody& body) {
  std::vector<std::byte> bytes(body.size_bytes());
  EXPECT_TRUE(body.ReadArray(0, std::span(bytes)));
  return bytes;
}

// Cut in pages and fed in pieces of every size, a message arrives as it was.
TEST(FrameAssembler, MessagesSurviveEveryCutOfPagesAndReads) {
  const std::vector<std::byte> body = RandomBytes(200'000, 1);
  std::mt19937 random(7);
  for (const size_t page_bytes : {50'000u, 65'536u, 199'999u, 200'000u}) {
    std::vector<std::byte> stream;
    for (size_t from = 0; from < body.size(); from += page_bytes) {
      const auto page = std::span(body).subspan(from, std::min(page_bytes, body.size() - from));
      const bool is_last = from + page_bytes >= body.size();
      const auto frame = Frame({.verb = Verb::kMatch,
                                .flags = is_last ? uint16_t{0} : protocol::kFrameMore,
                                .request_id = 9},
                               page);
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    const auto tail = Frame({.verb = Verb::kStats, .request_id = 10});
    stream.insert(stream.end(), tail.begin(), tail.end());
    for (const size_t read_bytes_max : {1u, 7u, 4096u, 1u << 20}) {
      FrameAssembler assembler;
      std::vector<Message> messages;
      for (size_t from = 0; from < stream.size();) {
        const size_t step = std::min<size_t>(1 + random() % read_bytes_max, stream.size() - from);
        std::span<const std::byte> input(stream.data() + from, step);
        from += step;
        Message message;
        while (assembler.Next(&input, &message) == FrameAssembler::Outcome::kMessage) {
          message.body.Own();
          messages.push_back(std::move(message));
          message = {};
        }
        ASSERT_TRUE(input.empty());
        ASSERT_TRUE(assembler.error().ok());
      }
      ASSERT_EQ(messages.size(), 2u);
      EXPECT_EQ(messages[0].verb, Verb::kMatch);
      EXPECT_EQ(messages[0].request_id, 9u);
      EXPECT_EQ(Content(messages[0].body), body);
      EXPECT_EQ(messages[1].body.size_bytes(), 0u);
      EXPECT_EQ(assembler.buffered_bytes(), 0u);
    }
  }
}

TEST(FrameAssembler, AFrameInOneReadIsNotCopied) {
  const auto frame = Frame({.verb = Verb::kMatch, .request_id = 1}, RandomBytes(3000, 2));
  FrameAssembler assembler;
  std::span<const std::byte> input(frame);
  Message message;
  ASSERT_EQ(assembler.Next(&input, &message), FrameAssembler::Outcome::kMessage);
  EXPECT_EQ(message.body.owned_bytes(), 0u);
  EXPECT_EQ(message.body.size_bytes(), 3000u);
}

std::string Refusal(const std::vector<std::vector<std::byte>>& frames) {
  FrameAssembler assembler;
  for (const auto& frame : frames) {
    std::span<const std::byte> input(frame);
    Message message;
    FrameAssembler::Outcome outcome;
    while ((outcome = assembler.Next(&input, &message)) == FrameAssembler::Outcome::kMessage) {
    }
    if (outcome == FrameAssembler::Outcome::kMalformed) return assembler.error().sentence();
  }
  return "accepted";
}

std::vector<std::byte> WithSize(std::vector<std::byte> frame, uint32_t frame_bytes) {
  std::memcpy(frame.data(), &frame_bytes, sizeof(frame_bytes));
  return frame;
}

TEST(FrameAssembler, EveryMalformedHeaderIsRefusedWithItsReason) {
  const FrameHeader good{.verb = Verb::kMatch, .request_id = 1};
  EXPECT_EQ(Refusal({Frame(good)}), "accepted");
  EXPECT_THAT(Refusal({WithSize(Frame(good), 15)}), HasSubstr("frame of 15 bytes"));
  EXPECT_THAT(Refusal({WithSize(Frame(good), (1 << 20) + 1)}), HasSubstr("1048576"));
  EXPECT_EQ(Refusal({WithSize(Frame(good), 1 << 20)}), "accepted");
  for (const uint8_t version : {0, 2, 255}) {
    EXPECT_THAT(Refusal({Frame({.version = version, .verb = Verb::kMatch, .request_id = 1})}),
                HasSubstr("frame version " + std::to_string(version)));
  }
  const int none = static_cast<int>(protocol::kVerbLast) + 1;
  for (const int verb : {0, none, 64, 65, 66, 67, 69, 255}) {
    EXPECT_THAT(Refusal({Frame({.verb = static_cast<Verb>(verb), .request_id = 1})}),
                HasSubstr("verb " + std::to_string(verb)));
  }
  EXPECT_THAT(Refusal({Frame({.verb = Verb::kMatch, .flags = 2, .request_id = 1})}),
              HasSubstr("frame flags 2"));
  EXPECT_THAT(Refusal({Frame({.verb = Verb::kMatch, .request_id = 0})}), HasSubstr("request id 0"));
}

TEST(FrameAssembler, PagesOfTwoMessagesDoNotInterleave) {
  const std::vector<std::byte> page = RandomBytes(8, 3);
  const FrameHeader first{.verb = Verb::kMatch, .flags = protocol::kFrameMore, .request_id = 1};
  EXPECT_EQ(Refusal({Frame(first, page), Frame({.verb = Verb::kMatch, .request_id = 1}, page)}),
            "accepted");
  EXPECT_THAT(Refusal({Frame(first, page), Frame({.verb = Verb::kMatch, .request_id = 2}, page)}),
              HasSubstr("within Match request 1"));
  EXPECT_THAT(Refusal({Frame(first, page), Frame({.verb = Verb::kAcquire, .request_id = 1}, page)}),
              HasSubstr("a page of Acquire"));
  EXPECT_THAT(Refusal({Frame(first)}), HasSubstr("an empty page"));
}

TEST(FrameAssembler, AMessageEndsAtItsLimit) {
  const size_t page_bytes = protocol::kFrameBytesMax - sizeof(FrameHeader);
  const auto page = Frame({.verb = Verb::kMatch, .flags = protocol::kFrameMore, .request_id = 1},
                          std::vector<std::byte>(page_bytes));
  const size_t pages = protocol::kMessageBytesMax / page_bytes;
  std::vector<std::vector<std::byte>> frames(pages, page);
  EXPECT_EQ(Refusal(frames), "accepted");
  frames.push_back(page);
  EXPECT_THAT(Refusal(frames), HasSubstr("more than 16777216 bytes"));
}

TEST(MessageBody, ReadsEndAtItsEnd) {
  MessageBody body;
  const std::vector<std::byte> bytes = RandomBytes(MessageBody::kChunkBytes + 4, 4);
  body.Append(bytes);
  uint64_t word = 0;
  EXPECT_TRUE(body.Read(bytes.size() - 8, &word));
  EXPECT_EQ(std::memcmp(&word, bytes.data() + bytes.size() - 8, 8), 0) << "across two chunks";
  EXPECT_FALSE(body.Read(bytes.size() - 7, &word));
  EXPECT_FALSE(body.Read(SIZE_MAX - 3, &word));
}

TEST(Reply, LongRepliesArePagedAndWhole) {
  const std::vector<uint64_t> first(50'000, 7), second(60'001, 9);
  Reply reply;
  reply.Begin(Verb::kAcquire, 5, 77, Status::Ok());
  reply.AddHead(uint32_t{42});
  reply.AddArray(std::span<const uint64_t>(first));
  reply.AddArray(std::span<const uint64_t>(second));
  std::vector<std::byte> stream;
  size_t pages = 0;
  for (; !reply.is_done(); ++pages) reply.AppendPage(&stream);
  EXPECT_GT(pages, 1u);
  std::vector<std::byte> body;
  for (size_t at = 0; at < stream.size();) {
    FrameHeader header;
    std::memcpy(&header, stream.data() + at, sizeof(header));
    ASSERT_LE(header.frame_bytes, protocol::kFrameBytesMax);
    const bool is_last = at + header.frame_bytes == stream.size();
    EXPECT_EQ(header.flags, is_last ? 0 : protocol::kFrameMore);
    EXPECT_EQ(header.request_id, 5u);
    body.insert(body.end(), stream.begin() + static_cast<ptrdiff_t>(at + sizeof(header)),
                stream.begin() + static_cast<ptrdiff_t>(at + header.frame_bytes));
    at += header.frame_bytes;
  }
  ASSERT_EQ(body.size(), 16 + 4 + 8 * (first.size() + second.size()));
  EXPECT_EQ(std::memcmp(body.data() + 20, first.data(), 8 * first.size()), 0);
  EXPECT_EQ(std::memcmp(body.data() + 20 + 8 * first.size(), second.data(), 8 * second.size()), 0);
}

// Each makes room for many: what was appended before is not copied for every one.
TEST(Reply, ManySmallRepliesAreAppendedInPlaceMostly) {
  std::vector<std::byte> output;
  uint32_t moved_count = 0;
  for (uint64_t id = 1; id <= 10'000; ++id) {
    const size_t capacity_before = output.capacity();
    Reply reply;
    reply.Begin(Verb::kCompletion, id, 7, Status::Ok());
    reply.AddHead(protocol::Completion{});
    reply.AppendPage(&output);
    moved_count += output.capacity() != capacity_before ? 1 : 0;
  }
  EXPECT_LT(moved_count, 24u);
}

TEST(Reply, AnErrorsSentenceIsCutBetweenCharacters) {
  std::string text(protocol::kErrorTextBytesMax - 1, 'x');
  text += "\u00fc and more";
  Reply reply;
  reply.Begin(Verb::kOpen, 1, 1, Status(StatusCode::kInvalid));
  reply.AddText(text);
  EXPECT_EQ(reply.body_bytes(), sizeof(protocol::ReplyPrefix) + protocol::kErrorTextBytesMax - 1);
}

}  // namespace
}  // namespace terrace
