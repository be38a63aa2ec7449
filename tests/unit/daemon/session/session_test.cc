#include "daemon/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <utility>

#include "daemon/lease/registration_turns.h"
#include "terrace/protocol_device.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::test {
namespace {

using protocol::Verb;
using ::testing::HasSubstr;

protocol::HelloRequest Hello() { return {}; }

// The only reply to one message, which also ends the connection.
std::string ClosingReply(SessionHarness& world, SessionId session,
                         std::span<const std::byte> bytes) {
  world.Deliver(session, bytes);
  const auto replies = world.transport.Take(session);
  EXPECT_TRUE(world.transport.lines[session].closed.has_value());
  if (replies.size() != 1) return "not one reply";
  EXPECT_NE(replies[0].status(), StatusCode::kOk);
  return replies[0].text();
}

TEST(SessionHello, TellsGeometryAndSecretOfItsDomain) {
  SessionHarness world({.domains = 2});
  const SessionId session = world.Connect(1);
  const FakeMessage reply = world.Call(session, Verb::kHello, BytesOf(Hello()));
  ASSERT_EQ(reply.status(), StatusCode::kOk);
  const auto hello = reply.At<protocol::HelloReply>();
  EXPECT_EQ(reply.body.size(), sizeof(hello));
  EXPECT_EQ(hello.session_id, session);
  EXPECT_STREQ(hello.domain_name, "domain1");
  EXPECT_EQ(hello.secret[0], std::byte{2});
  EXPECT_EQ(hello.segment_bytes, kSegmentBytesMin);
  EXPECT_EQ(world.transport.lines[session].attached, Transport::Attach::kArenaAndLife);
}

// PROMISE: T28 another version on the wire
TEST(SessionHello, EveryOtherBeginningIsRefusedAndClosed) {
  SessionHarness world;
  EXPECT_THAT(ClosingReply(world, world.Connect(),
                           world.Frames(Verb::kStats, BytesOf(protocol::StatsRequest{}), 1)),
              HasSubstr("begins with Hello"));
  protocol::HelloRequest hello;
  hello.magic = 7;
  EXPECT_THAT(ClosingReply(world, world.Connect(), world.Frames(Verb::kHello, BytesOf(hello), 1)),
              HasSubstr("no Hello of the Terrace protocol"));
  EXPECT_EQ(world.transport.lines.rbegin()->second.closed, CloseReason::kRefused);
  hello = {.version_min = 2, .version_max = 9};
  EXPECT_THAT(ClosingReply(world, world.Connect(), world.Frames(Verb::kHello, BytesOf(hello), 1)),
              HasSubstr("frame versions 2 to 9"));
  EXPECT_EQ(world.Stats().session_count, 0u) << "none of them ever was a session";
  EXPECT_THAT(ClosingReply(world, world.Attach(), world.Frames(Verb::kHello, BytesOf(Hello()), 99)),
              HasSubstr("a second Hello"));
}

TEST(SessionHello, AboveTheLimitOneMoreIsToldWhy) {
  SessionHarness world({.sessions_max = 2});
  world.Attach();
  world.Attach();
  EXPECT_THAT(ClosingReply(world, world.Connect(), world.Frames(Verb::kHello, BytesOf(Hello()), 1)),
              HasSubstr("sessions_max"));
}

// A harness whose first domain has a device.
struct WithDevice {
  std::vector<std::byte> Ask(uint64_t request_id) {
    protocol::DeviceAttachRequest request;
    std::memcpy(request.device, "test", 4);
    return world.Frames(protocol::kVerbDeviceAttach, BytesOf(request), request_id);
  }

  HbmTier tier{{.slab_bytes = kSegmentBytesMin,
                .slab_count = 2,
                .locate = [](const std::byte*) { return SlotAddress{}; },
                .now_us = [] { return uint64_t{0}; }}};
  SessionHarness world{{.device = &tier}};
};

class SessionPinTurn : public testing::Test {
 protected:
  FakeMessage Ask(SessionId session) { return Send(session, protocol::PinTurnAction::kAsk); }
  FakeMessage End(SessionId session) { return Send(session, protocol::PinTurnAction::kEnd); }
  // Its turns that have begun since the last call.
  uint32_t Begun(SessionId session) {
    uint32_t count = std::exchange(begun_[session], 0);
    for (const FakeMessage& news : world_.transport.Take(session)) {
      EXPECT_EQ(news.header.verb, protocol::kVerbPinTurnBegins);
      EXPECT_EQ(news.header.request_id, 0u);
      EXPECT_TRUE(news.body.empty());
      ++count;
    }
    return count;
  }
  FakeMessage Send(SessionId session, protocol::PinTurnAction action) {
    begun_[session] = Begun(session);
    const protocol::PinTurnRequest request{.action = action};
    world_.Deliver(session, world_.Frames(protocol::kVerbPinTurn, BytesOf(request), ++next_id_));
    FakeMessage answer;
    bool is_answered = false;
    for (FakeMessage& message : world_.transport.Take(session)) {
      const bool is_news = message.header.verb == protocol::kVerbPinTurnBegins;
      if (is_news) {
        EXPECT_TRUE(is_answered) << "news never overtakes the reply";
        ++begun_[session];
      } else {
        is_answered = true;
        answer = std::move(message);
      }
    }
    EXPECT_EQ(answer.header.request_id, next_id_);
    return answer;
  }
  static uint32_t Ahead(const FakeMessage& answer) {
    EXPECT_EQ(answer.status(), StatusCode::kOk);
    EXPECT_EQ(answer.body.size(), sizeof(protocol::PinTurnReply));
    return answer.At<protocol::PinTurnReply>().ahead_count;
  }

  SessionHarness world_{{.domains = 2}};
  std::map<SessionId, uint32_t> begun_;
  uint64_t next_id_ = 500;
};

TEST_F(SessionPinTurn, GoesFromOneToTheNextWhateverTheirDomain) {
  const SessionId first = world_.Attach(0);
  const SessionId second = world_.Attach(1);
  const SessionId third = world_.Attach(0);
  EXPECT_EQ(Ahead(Ask(first)), 0u);
  EXPECT_EQ(Begun(first), 1u);
  EXPECT_EQ(Ahead(Ask(second)), 1u);
  EXPECT_EQ(Ahead(Ask(third)), 2u);
  EXPECT_EQ(Begun(second) + Begun(third), 0u);
  const FakeMessage ended = End(first);
  EXPECT_EQ(ended.status(), StatusCode::kOk);
  EXPECT_TRUE(ended.body.empty());
  EXPECT_EQ(Begun(second), 1u);
  EXPECT_EQ(Begun(third), 0u);
  EXPECT_EQ(End(third).status(), StatusCode::kOk) << "it does not wait any more";
  EXPECT_EQ(End(second).status(), StatusCode::kOk);
  EXPECT_EQ(Begun(first) + Begun(third), 0u);
}

TEST_F(SessionPinTurn, AskedTwiceItIsOnePlaceAndWithoutOneThereIsNothingToEnd) {
  const SessionId first = world_.Attach();
  const SessionId second = world_.Attach();
  const SessionId third = world_.Attach();
  EXPECT_EQ(End(first).status(), StatusCode::kGone);
  Ask(first);
  Ask(second);
  Ask(third);
  EXPECT_EQ(Ahead(Ask(second)), 1u) << "where it was";
  EXPECT_EQ(Ahead(Ask(first)), 0u);
  EXPECT_EQ(Begun(first), 2u) << "told again";
  End(first);
  EXPECT_EQ(End(first).status(), StatusCode::kGone);
  EXPECT_EQ(Begun(second), 1u);
  End(second);
  EXPECT_EQ(Begun(third), 1u);
  End(third);
  EXPECT_EQ(Begun(second), 0u) << "it had asked for one turn";
}

TEST_F(SessionPinTurn, WhoNeverEndsItStopsOthersForTwoSeconds) {
  const SessionId stuck = world_.Attach();
  const SessionId second = world_.Attach();
  Ask(stuck);
  world_.AdvanceTime(60 * kUsPerSecond);
  Ask(second);
  EXPECT_EQ(Begun(second), 1u) << "it had been long enough";
  Ask(stuck);
  world_.AdvanceTime(kRegistrationTurnUs - 1);
  EXPECT_EQ(Begun(stuck), 1u) << "the one it had before";
  world_.AdvanceTime(1);
  EXPECT_EQ(Begun(stuck), 1u);
  EXPECT_EQ(End(second).status(), StatusCode::kGone);
  world_.AdvanceTime(60 * kUsPerSecond);
  EXPECT_EQ(Begun(stuck) + Begun(second), 0u);
}

TEST_F(SessionPinTurn, ADisconnectEndsIt) {
  const SessionId first = world_.Attach();
  const SessionId second = world_.Attach();
  const SessionId third = world_.Attach();
  Ask(first);
  Ask(second);
  Ask(third);
  world_.sessions->OnHangUp(second);
  world_.sessions->OnHangUp(first);
  EXPECT_EQ(Begun(third), 1u);
}

TEST_F(SessionPinTurn, WhatIsNoSuchRequestIsRefused) {
  const SessionId session = world_.Attach();
  const FakeMessage unknown = Send(session, static_cast<protocol::PinTurnAction>(2));
  EXPECT_EQ(unknown.status(), StatusCode::kInvalid);
  EXPECT_THAT(unknown.text(), HasSubstr("turn action 2"));
  EXPECT_EQ(End(session).status(), StatusCode::kGone) << "the session lives, and asked for nothing";
  world_.Deliver(session, world_.Frames(protocol::kVerbPinTurn, BytesOf(uint32_t{0}), 1));
  EXPECT_TRUE(world_.transport.lines[session].closed.has_value());
}

TEST(SessionDeviceReport, TheLastOneOfEachSessionIsSummedUpAndShown) {
  SessionHarness world({.domains = 2});
  const SessionId first = world.Attach();
  const SessionId second = world.Attach();
  const SessionId elsewhere = world.Attach(1);
  protocol::DeviceReport report{.pinned_bytes = 10, .straight_bytes = 5, .bounced_bytes = 7};
  report.failed_count = 1;
  std::memcpy(report.backend, "cuda\033[2J", 8);
  std::memset(report.why, 'y', sizeof(report.why));
  const auto tell = [&](SessionId session) {
    return world.Call(session, protocol::kVerbDeviceReport, BytesOf(report)).status();
  };
  EXPECT_EQ(world.Stats().copies.client_count, 0u);
  EXPECT_EQ(tell(first), StatusCode::kOk);
  EXPECT_EQ(tell(second), StatusCode::kOk);
  EXPECT_EQ(tell(elsewhere), StatusCode::kOk);
  report.pinned_bytes = 30;
  EXPECT_EQ(tell(second), StatusCode::kOk);
  const auto copies = world.Stats().copies;
  EXPECT_EQ(copies.client_count, 2u);
  EXPECT_EQ(copies.pinned_bytes, 40u);
  EXPECT_EQ(copies.straight_bytes, 10u);
  EXPECT_EQ(copies.bounced_bytes, 14u);
  EXPECT_EQ(copies.registrations_failed, 2u);
  ASSERT_EQ(copies.clients.size(), 2u);
  EXPECT_EQ(copies.clients[0].session, first);
  EXPECT_EQ(copies.clients[0].backend, "cuda?[2J") << "it ends up on terminals";
  EXPECT_EQ(copies.clients[0].why, std::string(sizeof(report.why), 'y'));
  world.sessions->OnHangUp(second);
  EXPECT_EQ(world.Stats().copies.pinned_bytes, 10u);
  world.Deliver(first, world.Frames(protocol::kVerbDeviceReport, BytesOf(uint64_t{0}), 1));
  EXPECT_TRUE(world.transport.lines[first].closed.has_value());
}

TEST(SessionDeviceAttach, GivesTheSlabsOnce) {
  WithDevice device;
  SessionHarness& world = device.world;
  const SessionId session = world.Attach();
  world.Deliver(session, device.Ask(2));
  ASSERT_EQ(world.transport.Take(session).at(0).status(), StatusCode::kOk);
  EXPECT_EQ(world.transport.lines[session].attached, Transport::Attach::kDeviceSlabs);
  EXPECT_THAT(ClosingReply(world, session, device.Ask(3)), HasSubstr("once a session"));
}

TEST(SessionDeviceAttach, BehindAnUnansweredHelloItEndsTheSession) {
  WithDevice device;
  SessionHarness& world = device.world;
  const SessionId session = world.Connect();
  std::vector<std::byte> bytes = world.Frames(Verb::kHello, BytesOf(Hello()), 1);
  const std::vector<std::byte> ask = device.Ask(2);
  bytes.insert(bytes.end(), ask.begin(), ask.end());
  world.Deliver(session, bytes);
  const auto replies = world.transport.Take(session);
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].status(), StatusCode::kInvalid);
  EXPECT_TRUE(world.transport.lines[session].closed.has_value());
  EXPECT_EQ(world.transport.lines[session].attached, Transport::Attach::kArenaAndLife)
      << "its death is watched all the same";
}

TEST(SessionOpen, AnotherSpecUnderAKnownNameNamesFieldAndValues) {
  SessionHarness world;
  const SessionId first = world.Attach(), second = world.Attach();
  EXPECT_EQ(world.Open(first, "g"), 1u);
  EXPECT_EQ(world.Open(second, "g"), 1u);
  EXPECT_EQ(world.Open(first, "g"), 1u) << "opened again it keeps its handle";
  EXPECT_EQ(world.Open(first, "h", 2), 2u);
  const std::string text = SpaceSpec{
      .model = "m",
      .revision = "other",
      .dtype = "bf16",
      .layers = 1,
      .kv_heads = 1,
      .head_size = 64,
      .layout = "nhd",
      .block_tokens = 16,
      .part_bytes = {4096}}.CanonicalText();
  std::vector<std::byte> body;
  const auto append = [&body](std::span<const std::byte> bytes) {
    body.insert(body.end(), bytes.begin(), bytes.end());
  };
  append(BytesOf(protocol::OpenRequest{.name_bytes = 1, .member_count = 1, .self_mask = 1}));
  append(std::as_bytes(std::span("g", 1)));
  append(BytesOf(protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())}));
  append(std::as_bytes(std::span(text)));
  const FakeMessage reply = world.Call(second, Verb::kOpen, body);
  EXPECT_EQ(reply.status(), StatusCode::kInvalid);
  EXPECT_THAT(reply.text(), HasSubstr("revision"));
  EXPECT_THAT(reply.text(), HasSubstr("other"));
  body[sizeof(protocol::OpenRequest)] = std::byte{'h'};
  EXPECT_THAT(world.Call(second, Verb::kOpen, body).text(),
              HasSubstr("'h' is open with 2 members, not 1; member 0's revision 'r', not 'other'"));
  EXPECT_FALSE(world.transport.lines[second].closed.has_value());
}

TEST(SessionRequests, PipelinedRequestsAreAnsweredInOrder) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  std::vector<std::byte> stream;
  for (uint64_t id = 500; id < 700; ++id) {
    const auto frames = world.Frames(Verb::kMatch, world.KeysBody(group, MakeKeys(id % 40, 1)), id);
    stream.insert(stream.end(), frames.begin(), frames.end());
  }
  world.Deliver(session, stream);
  const auto replies = world.transport.Take(session);
  ASSERT_EQ(replies.size(), 200u);
  for (uint64_t id = 500; id < 700; ++id) EXPECT_EQ(replies[id - 500].header.request_id, id);
}

TEST(SessionRequests, WhatWasStoredIsAcquired) {
  SessionHarness world;
  const SessionId writer = world.Attach(), reader = world.Attach();
  const auto keys = MakeKeys(300, 1);
  EXPECT_EQ(world.StoreBlocks(writer, world.Open(writer, "g", 2), keys), 300u);
  const uint32_t group = world.Open(reader, "g", 2);
  const FakeMessage reply = world.CallKeys(reader, Verb::kAcquire, group, keys);
  const auto head = reply.At<protocol::AcquireReply>();
  EXPECT_EQ(head.block_count, 300u);
  EXPECT_EQ(head.slot_count, 600u);
  EXPECT_EQ(reply.body.size(), sizeof(head) + head.span_count * sizeof(protocol::BlockSpan) +
                                   600 * sizeof(SlotAddress));
  EXPECT_EQ(
      world.Call(reader, Verb::kRelease, BytesOf(protocol::ReleaseRequest{.token = head.token}))
          .status(),
      StatusCode::kOk);
  world.store->CheckInvariants(CheckScope::kFull);
}

TEST(SessionRequests, BadArgumentsAreToldAndTheSessionLives) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  const auto keys = MakeKeys(4, 1);
  const auto refused = [&](Verb verb, std::vector<std::byte> body) {
    const FakeMessage reply = world.Call(session, verb, body);
    EXPECT_EQ(reply.status(), StatusCode::kInvalid);
    EXPECT_FALSE(world.transport.lines[session].closed.has_value());
    return reply.text();
  };
  EXPECT_THAT(refused(Verb::kMatch, world.KeysBody(9, keys)), HasSubstr("group handle 9"));
  EXPECT_THAT(refused(Verb::kMatch, world.KeysBody(0, keys)), HasSubstr("group handle 0"));
  EXPECT_THAT(refused(Verb::kMatch, world.KeysBody(group, keys, 1 << 20)), HasSubstr("flags"));
  EXPECT_THAT(
      refused(Verb::kAcquire, world.KeysBody(group, MakeKeys(protocol::kKeysPerRequestMax + 1, 1))),
      HasSubstr("262145 keys"));
  EXPECT_THAT(refused(Verb::kEvict, world.KeysBody(group, {})), HasSubstr("without keys"));
  auto body = world.KeysBody(group, keys);
  protocol::KeysRequest head{.group_handle = group, .key_count = 4, .member_mask = 2};
  std::memcpy(body.data(), &head, sizeof(head));
  EXPECT_THAT(refused(Verb::kAcquire, body), HasSubstr("1 members"));
  head = {.group_handle = group, .key_count = 4, .hints = {.priority = 101}};
  std::memcpy(body.data(), &head, sizeof(head));
  EXPECT_THAT(refused(Verb::kAcquire, body), HasSubstr("priority 101"));
  head = {.group_handle = group, .key_count = 4, .hints = {.ttl_s = 60}};
  std::memcpy(body.data(), &head, sizeof(head));
  EXPECT_THAT(
      refused(Verb::kAcquire, body),
      HasSubstr("ttl_s (60) with Acquire, which has no use for it: leave it out, or give it "
                "with Reserve, Commit, Touch and Pin"));
  const auto bytes_of = [](const auto& request) {
    const auto bytes = BytesOf(request);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  EXPECT_THAT(refused(Verb::kCommit, bytes_of(protocol::CommitRequest{.hints = {.min_tokens = 9}})),
              HasSubstr("min_tokens (9)"));
  EXPECT_THAT(refused(Verb::kRelease, bytes_of(protocol::ReleaseRequest{.hints = {.priority = 9}})),
              HasSubstr("priority (9)"));
  const auto list = [](uint32_t entry_count_max) {
    const protocol::ListRequest request{.entry_count_max = entry_count_max};
    const auto bytes = BytesOf(request);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  EXPECT_THAT(refused(Verb::kList, list(0)), HasSubstr("List of 0"));
  EXPECT_EQ(world.Call(session, Verb::kList, list(10)).status(), StatusCode::kOk);
}

TEST(SessionRequests, BodiesThatContradictTheirCountsCloseTheConnection) {
  for (const Verb verb : {Verb::kOpen,
                          Verb::kMatch,
                          Verb::kAcquire,
                          Verb::kPrefetch,
                          Verb::kJoin,
                          Verb::kRelease,
                          Verb::kCancel,
                          Verb::kTouch,
                          Verb::kReserve,
                          Verb::kCommit,
                          Verb::kAbort,
                          Verb::kQuery,
                          Verb::kWait,
                          Verb::kEvict,
                          Verb::kPin,
                          Verb::kReset,
                          Verb::kList,
                          Verb::kUnmapped,
                          protocol::kVerbHitRate,
                          protocol::kVerbExplain,
                          protocol::kVerbTraceRecord,
                          protocol::kVerbFsck}) {
    for (const size_t body_bytes : {0u, 3u, 201u}) {
      SessionHarness world;
      const SessionId session = world.Attach();
      std::vector<std::byte> body(body_bytes);
      const std::string text = ClosingReply(world, session, world.Frames(verb, body, 77));
      EXPECT_THAT(text, HasSubstr(std::string(VerbName(verb)) + " of " +
                                  std::to_string(body_bytes) + " bytes"));
      EXPECT_EQ(world.transport.lines[session].closed, CloseReason::kMalformed);
    }
  }
}

// A million-token prompt goes on turn by turn; another session is served between two of its turns.
TEST(SessionTurns, ALongRequestYieldsToOthers) {
  SessionHarness world;
  const SessionId longer = world.Attach(), other = world.Attach();
  const uint32_t group = world.Open(longer, "g");
  const auto frames = world.Frames(Verb::kQuery, world.KeysBody(group, MakeKeys(100'000, 1)), 900);
  EXPECT_FALSE(world.sessions->OnBytes(longer, frames)) << "no more input for now";
  ASSERT_TRUE(world.sessions->has_work());
  size_t turns = 0, others_served = 0;
  while (world.sessions->has_work()) {
    EXPECT_TRUE(world.sessions->OnBytes(
        other, world.Frames(Verb::kStats, BytesOf(protocol::StatsRequest{}), 5000 + turns)));
    others_served += world.transport.Take(other).size();
    world.sessions->OnTurn();
    ++turns;
  }
  EXPECT_GE(turns, 100'000u / protocol::kBlocksPerTurnMax);
  EXPECT_EQ(others_served, turns);
  EXPECT_EQ(world.transport.lines[longer].resumes, 1u);
  const auto replies = world.transport.Take(longer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].body.size(), 100'000 * sizeof(protocol::QueriedBlock));
}

// A block that is to be written may push others out: 128 of them are a turn's worth.
TEST(SessionTurns, ReservingIsDearerThanLookingUp) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  EXPECT_FALSE(world.sessions->OnBytes(
      session, world.Frames(Verb::kReserve, world.KeysBody(group, MakeKeys(1000, 1)), 900)));
  size_t turns = 1;
  for (; world.sessions->has_work(); ++turns) world.sessions->OnTurn();
  EXPECT_GE(turns, 1000u / 128);
  const auto replies = world.transport.Take(session);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].At<protocol::ReserveReply>().key_count, 1000u);
}

// Its document is as long as there are sessions: ten asked for at once are ten turns.
TEST(SessionTurns, AStatsDocumentIsATurnsWorth) {
  SessionHarness world;
  const SessionId session = world.Attach();
  std::vector<std::byte> asked;
  for (uint64_t id = 1; id <= 10; ++id) {
    const auto frames = world.Frames(Verb::kStats, BytesOf(protocol::StatsRequest{}), id);
    asked.insert(asked.end(), frames.begin(), frames.end());
  }
  world.sessions->OnBytes(session, asked);
  EXPECT_EQ(world.transport.Take(session).size(), 1u);
  for (int turn = 1; turn < 10; ++turn) {
    ASSERT_TRUE(world.sessions->has_work());
    world.sessions->OnTurn();
    EXPECT_EQ(world.transport.Take(session).size(), 1u);
  }
  EXPECT_FALSE(world.sessions->has_work());
}

TEST(SessionTurns, TwoLongRequestsTakeTurns) {
  SessionHarness world;
  const SessionId first = world.Attach(), second = world.Attach();
  const uint32_t group = world.Open(first, "g");
  world.Open(second, "g");
  const auto body = world.KeysBody(group, MakeKeys(20'000, 1));
  world.sessions->OnBytes(first, world.Frames(Verb::kQuery, body, 1));
  world.sessions->OnBytes(second, world.Frames(Verb::kQuery, body, 1));
  size_t turns = 0;
  size_t first_done = 0, second_done = 0;
  for (; world.sessions->has_work(); ++turns) {
    world.sessions->OnTurn();
    if (first_done == 0 && !world.transport.lines[first].sent.empty()) first_done = turns;
    if (second_done == 0 && !world.transport.lines[second].sent.empty()) second_done = turns;
  }
  EXPECT_LE(second_done - first_done, 2u) << "they end together";
}

TEST(SessionTurns, NewsNeverCutsAPagedReply) {
  SessionHarness world({.lease_ttl_ms = 1000});
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  const auto few = MakeKeys(8, 3);
  ASSERT_EQ(world.StoreBlocks(session, group, few), 8u);
  ASSERT_EQ(world.CallKeys(session, Verb::kAcquire, group, few).status(), StatusCode::kOk);
  world.sessions->OnBytes(
      session, world.Frames(Verb::kQuery, world.KeysBody(group, MakeKeys(60'000, 1)), 900));
  // Until its first page is out, then the lease's time runs out.
  while (world.transport.lines[session].sent.empty()) world.sessions->OnTurn();
  ASSERT_TRUE(world.sessions->has_work());
  world.AdvanceTime(3'000'000);
  const auto messages = world.transport.Take(session);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].header.verb, Verb::kQuery);
  EXPECT_EQ(messages[0].body.size(), 60'000 * sizeof(protocol::QueriedBlock));
  EXPECT_EQ(messages[1].header.verb, Verb::kLeaseRevoked);
}

TEST(SessionTurns, AHangUpInTheMiddleOfALongRequestLeavesNothingBehind) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  world.sessions->OnBytes(
      session, world.Frames(Verb::kReserve, world.KeysBody(group, MakeKeys(6000, 1)), 900));
  ASSERT_TRUE(world.sessions->has_work());
  world.sessions->OnTurn();
  EXPECT_GT(world.Stats().slot_bytes_used, 0u);
  world.sessions->OnHangUp(session);
  world.Settle();
  EXPECT_EQ(world.Stats().fenced_bytes, 0u) << "it had not been told where its slots are";
  EXPECT_EQ(world.Stats().slot_bytes_used, 0u);
  EXPECT_EQ(world.Stats().session_count, 0u);
  world.sessions->OnProofOfDeath(session);
  world.store->CheckInvariants(CheckScope::kFull);
}

// The lease is revoked while a joiner's answer is still being worked out: it hears "gone", knows no
// lease, and so has nothing to acknowledge.
TEST(SessionTurns, AJoinThatFailsHalfwayHoldsNothing) {
  SessionHarness world;
  const SessionId writer = world.Attach(), joiner = world.Attach();
  const uint32_t group = world.Open(writer, "g");
  world.Open(joiner, "g");
  const auto reserved = world.CallKeys(writer, Verb::kReserve, group, MakeKeys(3000, 1));
  ASSERT_EQ(reserved.status(), StatusCode::kOk);
  const protocol::JoinRequest join{.token = reserved.At<protocol::ReserveReply>().token,
                                   .group_handle = 1};
  world.sessions->OnBytes(joiner, world.Frames(Verb::kJoin, BytesOf(join), 900));
  ASSERT_TRUE(world.sessions->has_work());
  world.sessions->OnHangUp(writer);
  world.Settle();
  std::vector<FakeMessage> replies;
  for (FakeMessage& message : world.transport.Take(joiner)) {
    if (message.header.request_id == 900) replies.push_back(std::move(message));
  }
  ASSERT_EQ(replies.size(), 1u);
  ASSERT_EQ(replies[0].status(), StatusCode::kGone);
  world.sessions->OnProofOfDeath(writer);
  world.Settle();
  EXPECT_EQ(world.Stats().fenced_bytes, 0u);
  EXPECT_EQ(world.Stats().slot_bytes_used, 0u);
}

TEST(SessionTurns, ALongCommitReleasesWithItsLastEntryOnly) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  // Memory grows when it is asked for: the last of these finds room for all its keys at once.
  for (uint64_t chain = 1; chain <= 4; ++chain) {
    world.StoreBlocks(session, group, MakeKeys(3000, chain));
  }
  const uint64_t sealed_before = world.Stats().blocks_sealed;
  const uint64_t reserves_before = world.Stats().reserve_no_space;
  ASSERT_EQ(world.StoreBlocks(session, group, MakeKeys(3000, 5)), 3000u);
  EXPECT_EQ(world.Stats().blocks_sealed - sealed_before, 3000u);
  EXPECT_EQ(world.Stats().reserve_no_space, reserves_before) << "one Reserve, one Commit";
  EXPECT_EQ(world.Stats().commits_gone, 0u);
}

// A walk below the first step's keys goes on in later turns, which have more room than the first.
TEST(SessionTurns, EvictingManySubtreesSkipsNone) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  std::vector<BlockKey> roots;
  for (uint64_t chain = 1; chain <= 1100; ++chain) {
    const auto keys = MakeKeys(2, chain);
    ASSERT_EQ(world.StoreBlocks(session, group, keys), 2u);
    roots.push_back(keys[0]);
  }
  const auto evicted = world.CallKeys(session, Verb::kEvict, group, roots, protocol::kEvictSubtree);
  ASSERT_EQ(evicted.status(), StatusCode::kOk);
  EXPECT_EQ(evicted.At<protocol::EvictReply>().block_count, 2200u);
  EXPECT_EQ(world.Stats().block_count, 0u);
}

TEST(SessionBounds, AClientThatDoesNotReadIsClosed) {
  SessionHarness world({.output_bytes_max = 20 * kMiB});
  const SessionId session = world.Attach();
  world.transport.stuck_bytes = 20 * kMiB + 1;
  world.Deliver(session, world.Frames(Verb::kStats, BytesOf(protocol::StatsRequest{}), 50));
  EXPECT_EQ(world.transport.lines[session].closed, CloseReason::kSlowReader);
}

TEST(SessionBounds, AllSessionsTogetherBufferSoMuch) {
  SessionHarness world({.buffers_bytes_max = 4 * kMiB});
  const SessionId modest = world.Attach();
  std::vector<SessionId> greedy;
  std::vector<std::byte> page(protocol::kFrameBytesMax);
  const protocol::FrameHeader header{.frame_bytes = protocol::kFrameBytesMax,
                                     .verb = Verb::kMatch,
                                     .flags = protocol::kFrameMore,
                                     .request_id = 50};
  std::memcpy(page.data(), &header, sizeof(header));
  for (int i = 0; i < 6; ++i) {
    greedy.push_back(world.Attach());
    world.Deliver(greedy.back(), page);
  }
  EXPECT_FALSE(world.transport.lines[greedy[0]].closed.has_value());
  EXPECT_EQ(world.transport.lines[greedy[5]].closed, CloseReason::kNoBuffers);
  EXPECT_EQ(world.Call(modest, Verb::kStats, BytesOf(protocol::StatsRequest{})).status(),
            StatusCode::kOk);
}

TEST(SessionBounds, WhoeverBuffersMostGivesWay) {
  SessionHarness world({.domains = 2, .buffers_bytes_max = 4 * kMiB});
  const SessionId greedy = world.Attach(0), modest = world.Attach(1);
  std::vector<std::byte> page(protocol::kFrameBytesMax);
  const protocol::FrameHeader header{.frame_bytes = protocol::kFrameBytesMax,
                                     .verb = Verb::kMatch,
                                     .flags = protocol::kFrameMore,
                                     .request_id = 50};
  std::memcpy(page.data(), &header, sizeof(header));
  for (int i = 0; i < 4; ++i) world.Deliver(greedy, page);
  ASSERT_FALSE(world.transport.lines[greedy].closed.has_value());
  world.Deliver(modest, std::span(page).first(page.size() / 2));
  EXPECT_EQ(world.transport.lines[greedy].closed, CloseReason::kNoBuffers);
  EXPECT_FALSE(world.transport.lines[modest].closed.has_value());
}

TEST(SessionBounds, ARequestIdInUseIsRefused) {
  SessionHarness world;
  const SessionId session = world.Attach();
  const uint32_t group = world.Open(session, "g");
  const auto keys = MakeKeys(2, 1);
  // A reserved block that is followed keeps the Acquire pending.
  ASSERT_EQ(world.CallKeys(session, Verb::kReserve, group, keys).status(), StatusCode::kOk);
  const auto follow = world.KeysBody(group, keys, protocol::kAcquireFollow);
  world.Deliver(session, world.Frames(Verb::kAcquire, follow, 800));
  const auto replies = world.transport.Take(session);
  ASSERT_EQ(replies.size(), 1u);
  ASSERT_EQ(replies[0].At<protocol::AcquireReply>().block_count, 2u);
  EXPECT_THAT(ClosingReply(world, session, world.Frames(Verb::kAcquire, follow, 800)),
              HasSubstr("request id 800"));
}

// PROMISE: T37 another domain's things
// PROMISE: T30 another domain's things
TEST(SessionDomains, NothingOfAnotherDomainCanBeNamed) {
  SessionHarness world({.domains = 2});
  const SessionId mine = world.Attach(0), theirs = world.Attach(1);
  const uint32_t group = world.Open(mine, "g");
  world.Open(theirs, "g");
  const auto keys = MakeKeys(10, 1);
  ASSERT_EQ(world.StoreBlocks(mine, group, keys), 10u);
  const auto lease = world.CallKeys(mine, Verb::kAcquire, group, keys).At<protocol::AcquireReply>();
  EXPECT_EQ(
      world.CallKeys(theirs, Verb::kAcquire, group, keys).At<protocol::AcquireReply>().block_count,
      0u);
  EXPECT_EQ(world
                .Call(theirs, Verb::kJoin,
                      BytesOf(protocol::JoinRequest{.token = lease.token, .group_handle = group}))
                .status(),
            StatusCode::kNotFound);
  EXPECT_NE(
      world.Call(theirs, Verb::kRelease, BytesOf(protocol::ReleaseRequest{.token = lease.token}))
          .status(),
      StatusCode::kOk);
  EXPECT_EQ(world.Stats(0).lease_count, 1u);
}

}  // namespace
}  // namespace terrace::test
