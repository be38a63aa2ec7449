#include "tiers/redis/wire/redis_reply.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

namespace terrace {
namespace {

class Replies : public RedisReplySink {
 public:
  bool IsReplyDue() const override { return due_ > 0; }
  RedisPayloadPlace PayloadPlace() override {
    using Shape = RedisPayloadPlace::Shape;
    if (targets.empty()) return {};
    return {.shape = field_bytes.empty() ? Shape::kValue : Shape::kFields,
            .into = targets.front(),
            .field_bytes = field_bytes};
  }
  void OnReply(RedisReply reply) override {
    --due_;
    if (!targets.empty()) {
      payloads.push_back(targets.front());
      targets.pop_front();
    }
    replies.push_back(std::move(reply));
  }
  void Expect(size_t count) { due_ += count; }

  std::deque<std::vector<std::byte>> targets;
  std::vector<uint32_t> field_bytes;  // none: a target is for one value
  std::vector<std::vector<std::byte>> payloads;
  std::vector<RedisReply> replies;

 private:
  size_t due_ = 0;
};

// Gives the reader `text` in pieces of at most `piece_bytes`, as a socket would.
Status Feed(RedisReplyReader* reader, std::string_view text, size_t piece_bytes) {
  while (!text.empty()) {
    uint64_t given_bytes = 0;
    for (const iovec& place : reader->Gather()) {
      const size_t count = std::min({place.iov_len, piece_bytes - given_bytes, text.size()});
      std::memcpy(place.iov_base, text.data(), count);
      text.remove_prefix(count);
      given_bytes += count;
    }
    TERRACE_RETURN_IF_ERROR(reader->Received(given_bytes));
  }
  return Status::Ok();
}

std::string Bulk(std::string_view body) {
  std::string text = "$";
  text += std::to_string(body.size());
  text += "\r\n";
  text += body;
  text += "\r\n";
  return text;
}

TEST(RedisReplyReader, EveryKindOfReplyInPiecesOfAnySize) {
  const std::string body(1000, 'x');
  for (size_t piece_bytes = 1; piece_bytes < 40; ++piece_bytes) {
    Replies replies;
    RedisReplyReader reader(&replies);
    replies.Expect(6);
    ASSERT_TRUE(
        Feed(&reader,
             "+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n*3\r\n:1\r\n*2\r\n+a\r\n$-1\r\n$2\r\n\r\n\r\n" +
                 Bulk(body),
             piece_bytes)
            .ok());
    ASSERT_EQ(replies.replies.size(), 6u);
    EXPECT_EQ(replies.replies[0].kind, RedisReply::Kind::kStatus);
    EXPECT_EQ(replies.replies[0].text, "OK");
    EXPECT_EQ(replies.replies[1].kind, RedisReply::Kind::kError);
    EXPECT_EQ(replies.replies[1].text, "ERR no");
    EXPECT_EQ(replies.replies[2].integer, -7);
    EXPECT_EQ(replies.replies[3].kind, RedisReply::Kind::kNil);
    ASSERT_EQ(replies.replies[4].elements.size(), 3u);
    EXPECT_EQ(replies.replies[4].elements[1].elements[0].text, "a");
    EXPECT_EQ(replies.replies[4].elements[2].text, "\r\n");
    EXPECT_EQ(replies.replies[5].text, body);
  }
}

TEST(RedisReplyReader, PayloadsLandWhereTheyBelong) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 40; ++round) {
    Replies replies;
    RedisReplyReader reader(&replies);
    std::string stream;
    std::vector<std::string> bodies;
    for (int i = 0; i < 5; ++i) {
      std::string body(1 + random() % 200'000, '\0');
      for (char& byte : body) byte = "\r\n$*0"[random() % 5];
      replies.targets.emplace_back(body.size());
      stream += Bulk(body);
      bodies.push_back(std::move(body));
    }
    replies.Expect(5);
    ASSERT_TRUE(Feed(&reader, stream, 1 + random() % 100'000).ok());
    ASSERT_EQ(replies.payloads.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(replies.replies[i].kind, RedisReply::Kind::kPayload);
      EXPECT_EQ(std::memcmp(replies.payloads[i].data(), bodies[i].data(), bodies[i].size()), 0);
    }
  }
}

// What a socket that had nothing yet leaves behind.
TEST(RedisReplyReader, LookingTwiceExpectsTheSame) {
  Replies replies;
  RedisReplyReader reader(&replies);
  const std::string body(5'000, 'x');
  replies.targets.emplace_back(body.size());
  replies.Expect(1);
  const size_t head_bytes = reader.Gather()[0].iov_len;
  EXPECT_EQ(head_bytes, std::string_view("$5000\r\n").size());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reader.Gather()[0].iov_len, head_bytes);
  ASSERT_TRUE(Feed(&reader, Bulk(body), 100'000).ok());
  ASSERT_EQ(replies.payloads.size(), 1u);
  EXPECT_EQ(std::memcmp(replies.payloads[0].data(), body.data(), body.size()), 0);
}

std::string Array(size_t count, std::string_view values) {
  return "*" + std::to_string(count) + "\r\n" + std::string(values);
}

TEST(RedisReplyReader, FieldsLandInARowBeforeTheirText) {
  const std::string first(3'000, '\r'), second(200, '\n');
  for (size_t piece_bytes = 1; piece_bytes < 5'000; piece_bytes += 1 + piece_bytes / 3) {
    Replies replies;
    replies.field_bytes = {3'000, 200};
    RedisReplyReader reader(&replies);
    for (int i = 0; i < 4; ++i) replies.targets.emplace_back(3'200, std::byte{7});
    replies.Expect(4);
    ASSERT_TRUE(Feed(&reader,
                     Array(3, Bulk(first) + Bulk(second) + Bulk("what it is")) +
                         Array(3, "$-1\r\n$-1\r\n$-1\r\n") + "-WRONGTYPE x\r\n" +
                         Array(3, Bulk("another length") + Bulk(second) + Bulk("")),
                     piece_bytes)
                    .ok());
    ASSERT_EQ(replies.replies.size(), 4u);
    EXPECT_EQ(replies.replies[0].kind, RedisReply::Kind::kPayload);
    EXPECT_EQ(replies.replies[0].text, "what it is");
    EXPECT_EQ(replies.replies[0].integer, 3'200);
    EXPECT_EQ(std::memcmp(replies.payloads[0].data(), (first + second).data(), 3'200), 0);
    EXPECT_EQ(replies.replies[1].kind, RedisReply::Kind::kNil);
    EXPECT_EQ(replies.replies[2].kind, RedisReply::Kind::kError);
    EXPECT_EQ(replies.replies[3].kind, RedisReply::Kind::kPayload);
    EXPECT_EQ(replies.replies[3].integer, 200) << "the rest is not there";
    EXPECT_EQ(std::memcmp(replies.payloads[3].data() + 3'000, second.data(), 200), 0);
  }
}

// Nothing is known of where such a reply's bytes belong before its beginning has been seen.
TEST(RedisReplyReader, AFirstFieldOfNoBytesIsReadAsItComes) {
  for (size_t piece_bytes = 1; piece_bytes < 40; ++piece_bytes) {
    Replies replies;
    replies.targets.emplace_back(3);
    replies.field_bytes = {0, 3};
    RedisReplyReader reader(&replies);
    replies.Expect(2);
    ASSERT_TRUE(
        Feed(&reader, "*3\r\n" + Bulk("") + Bulk("abc") + Bulk("ok") + "$-1\r\n", piece_bytes).ok())
        << piece_bytes;
    ASSERT_EQ(replies.replies.size(), 2u);
    EXPECT_EQ(replies.replies[0].kind, RedisReply::Kind::kPayload);
    EXPECT_EQ(replies.replies[0].text, "ok");
    EXPECT_EQ(std::memcmp(replies.payloads[0].data(), "abc", 3), 0);
  }
}

TEST(RedisReplyReader, RefusesFieldsThatNobodyAskedFor) {
  const auto refusal_of = [](const std::string& text) {
    Replies replies;
    replies.field_bytes = {3};
    RedisReplyReader reader(&replies);
    replies.targets.emplace_back(3);
    replies.Expect(1);
    return Feed(&reader, text, 100).code();
  };
  for (const std::string& text :
       {Array(1, Bulk("a")), Array(3, ""), std::string("*-1\r\n"), Array(2, ":1\r\n"),
        Array(2, "$-2\r\n"), Array(2, "$3\r\nabcdef\r\n"), Array(2, Bulk("abc") + ":1\r\n")}) {
    EXPECT_EQ(refusal_of(text), StatusCode::kCorrupt) << text;
  }
  for (const std::string& text :
       {Array(2, "$99999999\r\n"), Array(2, Bulk("abc") + "$99999999\r\n")}) {
    EXPECT_EQ(refusal_of(text), StatusCode::kNoSpace) << text;
  }
}

// What follows a miss has come to where the missing payload belonged.
TEST(RedisReplyReader, WhatComesInsteadOfAPayloadIsReadAllTheSame) {
  const std::string body(3'000, 'z');
  for (size_t piece_bytes = 1; piece_bytes < 8'000; piece_bytes += 1 + piece_bytes / 3) {
    Replies replies;
    RedisReplyReader reader(&replies);
    for (int i = 0; i < 5; ++i) replies.targets.emplace_back(3'000);
    replies.Expect(5);
    ASSERT_TRUE(Feed(&reader,
                     "$-1\r\n" + Bulk(body) + "-LOADING x\r\n" + Bulk("short") + Bulk(body),
                     piece_bytes)
                    .ok());
    ASSERT_EQ(replies.replies.size(), 5u);
    EXPECT_EQ(replies.replies[0].kind, RedisReply::Kind::kNil);
    EXPECT_EQ(replies.replies[2].kind, RedisReply::Kind::kError);
    EXPECT_EQ(replies.replies[3].integer, 5);
    for (const size_t i : {1, 4}) {
      EXPECT_EQ(replies.replies[i].integer, 3'000);
      EXPECT_EQ(std::memcmp(replies.payloads[i].data(), body.data(), body.size()), 0);
    }
  }
}

TEST(RedisReplyReader, AnotherLengthIsReadPastAndSaid) {
  Replies replies;
  RedisReplyReader reader(&replies);
  replies.targets.emplace_back(10, std::byte{7});
  replies.targets.emplace_back(3);
  replies.Expect(2);
  ASSERT_TRUE(Feed(&reader, Bulk(std::string(100'000, 'y')) + Bulk("abc"), 999).ok());
  EXPECT_EQ(replies.replies[0].integer, 100'000);
  EXPECT_EQ(replies.payloads[0].size(), 10u);
  EXPECT_EQ(replies.replies[1].integer, 3);
}

TEST(RedisReplyReader, AMissingPayloadIsNilAndAnErrorAnError) {
  Replies replies;
  RedisReplyReader reader(&replies);
  replies.targets.emplace_back(10);
  replies.targets.emplace_back(10);
  replies.Expect(2);
  ASSERT_TRUE(Feed(&reader, "$-1\r\n-WRONGTYPE x\r\n", 4).ok());
  EXPECT_EQ(replies.replies[0].kind, RedisReply::Kind::kNil);
  EXPECT_EQ(replies.replies[1].kind, RedisReply::Kind::kError);
}

TEST(RedisReplyReader, RefusesWhatIsNoReply) {
  for (const char* const text :
       {"?\r\n", "hello\r\n", "$x\r\n", "*99999999\r\n", "$-2\r\n", ":12a\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"}) {
    Replies replies;
    RedisReplyReader reader(&replies);
    replies.Expect(1);
    EXPECT_EQ(Feed(&reader, text, 100).code(), StatusCode::kCorrupt) << text;
  }
  for (const std::string text : {"$x\r\n", "$-2\r\n", "$99999999999\r\n", "$123456789012345",
                                 "$3\r\nabcdef\r\n", "$999999999\r\n"}) {
    Replies replies;
    RedisReplyReader reader(&replies);
    replies.targets.emplace_back(3);
    replies.Expect(1);
    EXPECT_EQ(Feed(&reader, text, 100).code(),
              text.starts_with("$999") ? StatusCode::kNoSpace : StatusCode::kCorrupt)
        << text;
  }
}

TEST(RedisReplyReader, RefusesAnAnswerThatNobodyAskedFor) {
  Replies replies;
  RedisReplyReader reader(&replies);
  replies.Expect(1);
  EXPECT_EQ(Feed(&reader, "+OK\r\n+OK\r\n", 100).code(), StatusCode::kCorrupt);
}

TEST(RedisReplyReader, RefusesARepliesThatDoesNotEnd) {
  Replies replies;
  RedisReplyReader reader(&replies);
  replies.Expect(1);
  EXPECT_EQ(Feed(&reader, "+" + std::string(2 * kRedisReplyBytesMax, 'z'), 50'000).code(),
            StatusCode::kNoSpace);
  Replies large;
  RedisReplyReader second(&large);
  large.Expect(1);
  EXPECT_EQ(Feed(&second, Bulk(std::string(2 * kRedisReplyBytesMax, 'z')), 50'000).code(),
            StatusCode::kNoSpace);
}

// Each of these headers is eight bytes, and none of what they announce is there.
TEST(RedisReplyReader, AnArrayTakesMemoryForWhatHasComeOfIt) {
  const auto held_bytes = [] {
    const struct mallinfo2 heap = mallinfo2();  // zeros under a sanitizer
    return heap.uordblks + heap.hblkhd;
  };
  Replies replies;
  RedisReplyReader reader(&replies);
  replies.Expect(1);
  const size_t before_bytes = held_bytes();
  ASSERT_TRUE(Feed(&reader, "*65536\r\n*65536\r\n*65536\r\n:1\r\n", 100).ok());
  EXPECT_LT(held_bytes(), before_bytes + 64 * kKiB);
}

// Damaged streams: no crash, no reply nobody asked for; what memory checkers would find is found.
// PROMISE: T29 replies of Redis
TEST(RedisReplyReader, SurvivesAnyDamage) {
  std::mt19937_64 random(7);
  const std::string whole = "*2\r\n$3\r\nabc\r\n:5\r\n" + Bulk(std::string(300, 'q')) + "+OK\r\n";
  for (int round = 0; round < 20'000; ++round) {
    std::string text = whole;
    for (uint64_t i = 0; i <= random() % 4; ++i) {
      text[random() % text.size()] = "\r\n$*+-:0123456789a"[random() % 18];
    }
    Replies replies;
    RedisReplyReader reader(&replies);
    if (random() % 2 == 0) replies.targets.emplace_back(random() % 400);
    replies.Expect(3);
    (void)Feed(&reader, text, 1 + random() % 64);
    EXPECT_LE(replies.replies.size(), 3u);
  }
}

// Whoever answers a write in another way may have done nothing.
TEST(RedisReplies, OnlyWhatAWriteIsAnsweredWithSaysThatItWasDone) {
  using Kind = RedisReply::Kind;
  EXPECT_TRUE(IsWriteDone({.kind = Kind::kStatus, .text = "OK"}));
  EXPECT_TRUE(IsWriteDone({.kind = Kind::kInteger, .integer = 0}));
  EXPECT_TRUE(IsWriteDone({.kind = Kind::kArray, .elements = {{.kind = Kind::kInteger}}}));
  EXPECT_FALSE(IsWriteDone({}));
  EXPECT_FALSE(IsWriteDone({.kind = Kind::kStatus, .text = "PONG"}));
  EXPECT_FALSE(IsWriteDone({.kind = Kind::kString, .text = "OK"}));
  EXPECT_FALSE(IsWriteDone({.kind = Kind::kError, .text = "OK"}));
  EXPECT_FALSE(IsWriteDone({.kind = Kind::kArray}));
  EXPECT_FALSE(IsWriteDone({.kind = Kind::kArray, .elements = {{.kind = Kind::kError}}}));
}

}  // namespace
}  // namespace terrace
