// What the phases of requests are, as sessions tell them: over a real store, under virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "session_harness.h"
#include "terrace/protocol_operator.h"

namespace terrace::test {
namespace {

using nlohmann::json;
using protocol::DiagnoseAction;
using protocol::Verb;
using ::testing::HasSubstr;

class SlowRequests : public ::testing::Test {
 protected:
  json Slow(DiagnoseAction action = DiagnoseAction::kSlowRequests) {
    const protocol::DiagnoseRequest asked{.action = action};
    return json::parse(h.Call(s, protocol::kVerbDiagnose, BytesOf(asked)).text())["requests"];
  }
  void Send(SessionId session, Verb verb, std::span<const std::byte> body, uint64_t id) {
    h.sessions->OnBytes(session, h.Frames(verb, body, id));
  }
  // Its answer leaves a quarter of a second after it was made.
  void SendWhatIsAnsweredLate() {
    h.transport.stuck_bytes = 100;
    Send(s, Verb::kQuery, h.KeysBody(group, MakeKeys(2, 1)), 9);
    h.clock.Advance(250'000);
    h.transport.stuck_bytes = 0;
    h.sessions->OnSent(s);
  }

  SessionHarness h;
  SessionId s = h.Attach();
  uint32_t group = h.Open(s, "g");
};

TEST_F(SlowRequests, WhoFollowsAWriterWaitsForIt) {
  const auto keys = MakeKeys(8, 1);
  const SessionId writer = h.Attach();
  const uint32_t writers = h.Open(writer, "g");
  ASSERT_EQ(h.CallKeys(writer, Verb::kReserve, writers, keys).status(), StatusCode::kOk);
  Send(s, Verb::kAcquire, h.KeysBody(group, keys, protocol::kAcquireFollow), 77);
  h.clock.Advance(300'000);
  EXPECT_TRUE(Slow().empty()) << "it waits still";
  h.sessions->OnHangUp(writer);
  h.Settle();
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["verb"], "Acquire");
  EXPECT_EQ(rows[0]["request"], 77);
  EXPECT_EQ(rows[0]["blocks"], 8);
  EXPECT_EQ(rows[0]["bytes"], 8 * 4096);
  EXPECT_EQ(rows[0]["status"], static_cast<int>(StatusCode::kGone)) << "the writer died";
  EXPECT_EQ(rows[0]["phases_us"], json({{"writer", 300'000}}));
}

TEST_F(SlowRequests, ALongRequestIsTheStoresAndItsTurnsTheQueues) {
  Send(s, Verb::kQuery, h.KeysBody(group, MakeKeys(3'000, 1)), 5);
  ASSERT_TRUE(h.sessions->has_work());
  h.clock.Advance(60'000);
  h.sessions->OnTurn();
  h.clock.Advance(50'000);
  while (h.sessions->has_work()) h.sessions->OnTurn();
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["phases_us"], json({{"queue", 110'000}}));
  EXPECT_EQ(rows[0]["took_us"], 110'000);
}

TEST_F(SlowRequests, WhatComesWhileOthersAreWorkedOffWaitsInTheQueue) {
  auto bytes = h.Frames(Verb::kQuery, h.KeysBody(group, MakeKeys(3'000, 1)), 5);
  const auto second = h.Frames(Verb::kQuery, h.KeysBody(group, MakeKeys(1, 1)), 6);
  bytes.insert(bytes.end(), second.begin(), second.end());
  h.sessions->OnBytes(s, bytes);
  h.clock.Advance(200'000);
  while (h.sessions->has_work()) h.sessions->OnTurn();
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["request"], 6);
  EXPECT_EQ(rows[0]["phases_us"], json({{"queue", 200'000}}));
}

TEST_F(SlowRequests, AnAnswerThatDoesNotLeaveIsTheReplys) {
  SendWhatIsAnsweredLate();
  h.sessions->OnSent(s);
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 1u) << "once";
  EXPECT_EQ(rows[0]["phases_us"], json({{"reply", 250'000}}));
}

TEST_F(SlowRequests, WhoLeavesWhileItWaitsIsNotedAsGone) {
  const auto keys = MakeKeys(2, 1);
  const SessionId writer = h.Attach(), reader = h.Attach();
  h.CallKeys(writer, Verb::kReserve, h.Open(writer, "g"), keys);
  const uint32_t readers = h.Open(reader, "g");
  Send(reader, Verb::kAcquire, h.KeysBody(readers, keys, protocol::kAcquireFollow), 3);
  h.clock.Advance(150'000);
  h.sessions->OnHangUp(reader);
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["status"], static_cast<int>(StatusCode::kGone));
  EXPECT_EQ(rows[0]["phases_us"], json({{"writer", 150'000}}));
}

TEST_F(SlowRequests, EachOfWhatWaitsIsNotedAsItself) {
  const SessionId writer = h.Attach();
  const uint32_t writers = h.Open(writer, "g");
  const auto keys = MakeKeys(3, 1);
  for (const BlockKey& key : keys) h.CallKeys(writer, Verb::kReserve, writers, {&key, 1});
  for (uint64_t i = 0; i < keys.size(); ++i) {
    Send(s, Verb::kAcquire, h.KeysBody(group, {&keys[i], 1}, protocol::kAcquireFollow), 70 + i);
    h.clock.Advance(100'000);
  }
  h.sessions->OnHangUp(s);
  s = h.Attach();
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 3u);
  for (const json& row : rows) {
    EXPECT_EQ(row["took_us"], 300'000 - 100'000 * (row["request"].get<uint64_t>() - 70));
  }
}

TEST_F(SlowRequests, WhatCannotBeReadDoesNotCountTheTimeBefore) {
  const SessionId wild = h.Attach();
  h.clock.Advance(900'000);
  h.sessions->OnBytes(wild, std::vector<std::byte>(64, std::byte{0xff}));
  ASSERT_TRUE(h.transport.lines[wild].closed.has_value());
  EXPECT_TRUE(Slow().empty());
}

// Blocks that lie below, then one that another session writes.
class SlowTier : public ::testing::Test {
 protected:
  static constexpr uint64_t kReadUs = 200'000;

  json Slow() {
    const protocol::DiagnoseRequest asked;
    return json::parse(h.Call(s, protocol::kVerbDiagnose, BytesOf(asked)).text())["requests"];
  }

  sim::MemoryTier tier{{.latency_us_min = kReadUs, .latency_us_max = kReadUs}};
  SessionHarness h{{.segments = 2, .tier = &tier}};
  SessionId s = h.Attach();
  uint32_t group = h.Open(s, "g");
};

TEST_F(SlowTier, TimeIsThatOfTheNextBlockInPrefixOrder) {
  auto keys = MakeKeys(4, 1);
  ASSERT_EQ(h.StoreBlocks(s, group, keys), 4u);
  for (int i = 0; i < 10; ++i) h.AdvanceTime(kReadUs);
  for (uint64_t seed = 2; seed < 40; ++seed) {
    h.StoreBlocks(s, group, MakeKeys(64, seed));
    for (int i = 0; i < 10; ++i) h.AdvanceTime(kReadUs);
  }
  const protocol::DiagnoseRequest reset{.action = DiagnoseAction::kResetSlowRequests};
  h.Call(h.AttachAs(0), protocol::kVerbDiagnose, BytesOf(reset));

  keys.push_back(MakeKeys(1, 99)[0]);
  const SessionId writer = h.Attach();
  ASSERT_EQ(h.CallKeys(writer, Verb::kReserve, h.Open(writer, "g"), keys).status(),
            StatusCode::kOk);
  h.sessions->OnBytes(
      s, h.Frames(Verb::kAcquire, h.KeysBody(group, keys, protocol::kAcquireFollow), 5));
  h.AdvanceTime(kReadUs + 1'000);
  h.AdvanceTime(50'000);
  EXPECT_TRUE(Slow().empty()) << "the writer is awaited still";
  h.sessions->OnHangUp(writer);
  h.Settle();
  const json rows = Slow();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["phases_us"], json({{"nvme", kReadUs + 1'000}, {"writer", 50'000}}));
}

TEST_F(SlowRequests, ResetForgetsAndLogLinesAreADocument) {
  SendWhatIsAnsweredLate();
  const SessionId root = h.AttachAs(0);
  const protocol::DiagnoseRequest reset{.action = DiagnoseAction::kResetSlowRequests};
  const FakeMessage told = h.Call(root, protocol::kVerbDiagnose, BytesOf(reset));
  EXPECT_EQ(json::parse(told.text())["requests"].size(), 1u) << "shown once more";
  EXPECT_TRUE(Slow().empty());
  const protocol::DiagnoseRequest lines{.action = DiagnoseAction::kLogLines};
  EXPECT_TRUE(json::parse(h.Call(root, protocol::kVerbDiagnose, BytesOf(lines)).text())["lines"]
                  .is_array());
}

TEST_F(SlowRequests, OthersLogAndResetAreForAdmins) {
  for (const auto action : {DiagnoseAction::kResetSlowRequests, DiagnoseAction::kLogLines}) {
    const protocol::DiagnoseRequest asked{.action = action};
    const FakeMessage refused = h.Call(s, protocol::kVerbDiagnose, BytesOf(asked));
    EXPECT_EQ(refused.status(), StatusCode::kUnsupported);
    EXPECT_THAT(refused.text(), HasSubstr("uid 1000"));
  }
  const protocol::DiagnoseRequest wrong{.action = DiagnoseAction{3}};
  const FakeMessage invalid = h.Call(h.AttachAs(0), protocol::kVerbDiagnose, BytesOf(wrong));
  EXPECT_EQ(invalid.status(), StatusCode::kInvalid);
  EXPECT_THAT(invalid.text(), HasSubstr("diagnose action 3"));
}

}  // namespace
}  // namespace terrace::test
