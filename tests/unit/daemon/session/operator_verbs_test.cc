// EvictWhere, NamedPin and OperatorLog as frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "session_harness.h"
#include "terrace/protocol_operator.h"

namespace terrace::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OperatorVerbsTest : public ::testing::Test {
 protected:
  FakeMessage EvictWhere(const protocol::EvictWhereRequest& request) {
    return h.Call(s, protocol::kVerbEvictWhere, BytesOf(request));
  }
  FakeMessage NamedPin(protocol::NamedPinRequest request, const std::string& name,
                       const std::vector<BlockKey>& keys = {}) {
    name.copy(request.name, sizeof(request.name));
    request.key_count = static_cast<uint32_t>(keys.size());
    std::vector<std::byte> body(sizeof(request) + keys.size() * sizeof(BlockKey));
    std::memcpy(body.data(), &request, sizeof(request));
    if (!keys.empty()) {
      std::memcpy(body.data() + sizeof(request), keys.data(), keys.size() * sizeof(BlockKey));
    }
    return h.Call(s, protocol::kVerbNamedPin, body);
  }
  std::vector<protocol::OperatorLogEntry> Log(uint32_t count_max = protocol::kOperatorLogMax) {
    const protocol::OperatorLogRequest request{.entry_count_max = count_max};
    const FakeMessage answer = h.Call(s, protocol::kVerbOperatorLog, BytesOf(request));
    EXPECT_EQ(answer.status(), StatusCode::kOk);
    event_count = answer.At<protocol::OperatorLogReply>().event_count;
    std::vector<protocol::OperatorLogEntry> entries;
    for (uint32_t i = 0; i < answer.At<protocol::OperatorLogReply>().entry_count; ++i) {
      entries.push_back(answer.At<protocol::OperatorLogEntry>(
          sizeof(protocol::OperatorLogReply) + i * sizeof(protocol::OperatorLogEntry)));
    }
    return entries;
  }

  SessionHarness h;
  SessionId s = h.Attach();
  uint32_t group = h.Open(s, "g");
  uint64_t event_count = 0;
};

TEST_F(OperatorVerbsTest, EvictWhereAnswersCountsAndIsNoted) {
  h.StoreBlocks(s, group, MakeKeys(5, 1));
  h.AdvanceTime(10 * kUsPerSecond);
  const FakeMessage dry = EvictWhere({.idle_ms_min = 5'000, .flags = protocol::kEvictWhereDryRun});
  EXPECT_EQ(dry.At<protocol::EvictReply>().block_count, 5u);
  EXPECT_TRUE(Log().empty()) << "a dry run has done nothing";
  EXPECT_EQ(EvictWhere({.idle_ms_min = 5'000}).At<protocol::EvictReply>().block_count, 5u);
  h.AdvanceTime(3 * kUsPerSecond);
  const auto entries = Log();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].verb, protocol::kVerbEvictWhere);
  EXPECT_EQ(entries[0].block_count, 5u);
  EXPECT_GE(entries[0].age_ms, 3'000u);
  EXPECT_EQ(entries[0].is_whole, 1);
  EXPECT_STREQ(entries[0].detail, "idle_s=5 tier=all");
}

// What lies elsewhere, under another key or on a drive that is away, is not believed again.
TEST(EvictWhere, OfTiersHereErasesNothingWhereNobodyReaches) {
  struct Places final : AbsentPlaces {
    void NoteErasure(uint32_t /*domain_index*/) override { ++noted; }
    bool HasNoted(uint32_t /*domain_index*/) const override { return true; }
    int noted = 0;
  } places;
  SessionHarness h({.absent_places = &places});
  const SessionId s = h.Attach();
  h.StoreBlocks(s, h.Open(s, "g"), MakeKeys(5, 1));
  const auto evict = [&](const protocol::EvictWhereRequest& request) {
    return h.Call(s, protocol::kVerbEvictWhere, BytesOf(request)).status();
  };
  EXPECT_EQ(evict({.tier = static_cast<uint8_t>(protocol::TierKind::kDram)}), StatusCode::kOk);
  EXPECT_EQ(places.noted, 0);
  EXPECT_EQ(evict({.idle_ms_min = 5'000}), StatusCode::kOk);
  EXPECT_EQ(places.noted, 1);
}

TEST_F(OperatorVerbsTest, AnEvictionThatIsRefusedIsNotNoted) {
  h.StoreBlocks(s, group, MakeKeys(5, 1));
  constexpr auto kRedis = static_cast<uint8_t>(protocol::TierKind::kRedis);
  EXPECT_EQ(EvictWhere({.tier = kRedis}).status(), StatusCode::kUnsupported) << "there is none";
  EXPECT_TRUE(Log().empty());
}

TEST_F(OperatorVerbsTest, EvictResetPinAndTheirLikeAreNotedLatestFirst) {
  const auto keys = MakeKeys(4, 1);
  h.StoreBlocks(s, group, keys);
  NamedPin({.cap_bytes = 1 << 20, .action = protocol::PinAction::kSet}, "sys", {keys[0]});
  NamedPin({}, "");
  NamedPin({.action = protocol::PinAction::kClear}, "sys");
  h.CallKeys(s, protocol::Verb::kEvict, group, std::vector<BlockKey>{keys[3]});
  const protocol::ResetRequest reset{.group_handle = group};
  h.Call(s, protocol::Verb::kReset, BytesOf(reset));
  const auto entries = Log();
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].verb, protocol::Verb::kReset);
  EXPECT_EQ(entries[0].block_count, 3u);
  EXPECT_EQ(entries[1].verb, protocol::Verb::kEvict);
  EXPECT_EQ(entries[1].block_count, 1u);
  EXPECT_FALSE(entries[1].group.is_zero());
  EXPECT_STREQ(entries[2].detail, "clear sys");
  EXPECT_STREQ(entries[3].detail, "set sys");
  EXPECT_EQ(entries[3].block_count, 1u);
  EXPECT_EQ(Log(2).size(), 2u);
  EXPECT_EQ(event_count, 4u);
}

TEST_F(OperatorVerbsTest, TheLogIsBoundedAndSaysHowManyThereWere) {
  for (uint32_t i = 0; i < protocol::kOperatorLogMax + 9; ++i) {
    NamedPin({.cap_bytes = 1, .action = protocol::PinAction::kSet}, "p");
  }
  EXPECT_EQ(Log(10 * protocol::kOperatorLogMax).size(), protocol::kOperatorLogMax);
  EXPECT_EQ(event_count, protocol::kOperatorLogMax + 9);
}

TEST_F(OperatorVerbsTest, TheLogOfADomainTellsNothingOfAnother) {
  SessionHarness two({.domains = 2});
  const SessionId first = two.Attach(0), second = two.Attach(1);
  const uint32_t handle = two.Open(first, "g");
  const protocol::ResetRequest reset{.group_handle = handle};
  two.Call(first, protocol::Verb::kReset, BytesOf(reset));
  const protocol::OperatorLogRequest asked;
  const auto count = [&](SessionId session) {
    return two.Call(session, protocol::kVerbOperatorLog, BytesOf(asked))
        .At<protocol::OperatorLogReply>()
        .entry_count;
  };
  EXPECT_EQ(count(first), 1u);
  EXPECT_EQ(count(second), 0u);
}

TEST_F(OperatorVerbsTest, WhatIsNotKnownIsRefusedByNameAndNothingIsDone) {
  h.StoreBlocks(s, group, MakeKeys(2, 1));
  const FakeMessage flags = EvictWhere({.flags = 4});
  EXPECT_EQ(flags.status(), StatusCode::kInvalid);
  EXPECT_THAT(flags.text(), AllOf(HasSubstr("flags 4"), HasSubstr("knows 3")));
  const FakeMessage tier = EvictWhere({.tier = 9});
  EXPECT_EQ(tier.status(), StatusCode::kInvalid);
  EXPECT_THAT(tier.text(), HasSubstr("tier 9"));
  EXPECT_THAT(EvictWhere({.idle_ms_min = ~uint64_t{0}}).text(), HasSubstr("the limit is"));
  EXPECT_EQ(h.Stats().block_count, 2u);
  const protocol::NamedPinRequest set{.cap_bytes = 1, .action = protocol::PinAction::kSet};
  EXPECT_THAT(NamedPin(set, "a b").text(), HasSubstr("letters, digits"));
  EXPECT_THAT(NamedPin(set, std::string(48, 'a')).text(), HasSubstr("1 to 47"));
  EXPECT_THAT(NamedPin({.action = protocol::PinAction::kSet}, "a").text(), HasSubstr("cap of 0"));
  EXPECT_THAT(NamedPin({.action = static_cast<protocol::PinAction>(7)}, "a").text(),
              HasSubstr("action 7"));
  EXPECT_THAT(NamedPin({.flags = 1}, "a").text(), HasSubstr("flags 1"));
  EXPECT_TRUE(Log().empty()) << "what is refused is not noted";
}

TEST_F(OperatorVerbsTest, NumbersThatAreNotGivenAreRefused) {
  const auto number = static_cast<uint8_t>(protocol::kVerbLast) + 1;
  const FakeMessage answer = h.Call(s, static_cast<protocol::Verb>(number), {});
  EXPECT_EQ(answer.status(), StatusCode::kInvalid);
  EXPECT_THAT(answer.text(),
              HasSubstr("verb " + std::to_string(number) + " is none that a client sends"));
}

TEST_F(OperatorVerbsTest, APinOfManyKeysTakesTurnsAndIsWhole) {
  std::vector<BlockKey> keys = MakeKeys(3, 1);
  h.StoreBlocks(s, group, keys);
  std::vector<BlockKey> many = MakeKeys(5'000, 2);
  many.insert(many.end(), keys.begin(), keys.end());
  const FakeMessage answer =
      NamedPin({.cap_bytes = 1 << 20, .action = protocol::PinAction::kSet}, "many", many);
  const auto reply = answer.At<protocol::NamedPinReply>();
  EXPECT_EQ(reply.missing_count, 5'000u);
  ASSERT_EQ(reply.entry_count, 1u);
  EXPECT_EQ(answer.At<protocol::NamedPinEntry>(sizeof(reply)).block_count, 3u);
}

}  // namespace
}  // namespace terrace::test
