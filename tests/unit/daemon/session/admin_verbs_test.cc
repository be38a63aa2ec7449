// What a drained or bypassed domain answers to clients that ask it, and what is for admins alone.
#include "daemon/session/admin_verbs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terrace/protocol_admin.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_operator.h"
#include "terrace/protocol_retention.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::test {
namespace {

using protocol::DrainAction;
using protocol::ServingMode;
using protocol::Verb;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kNobody = 4'000'001;  // no user of this host
constexpr uint32_t kNamed = 4'000'002;

class Serving : public ::testing::Test {
 protected:
  void SetUp() override {
    client_ = world_.Attach();
    group_ = world_.Open(client_, "g");
    ASSERT_EQ(world_.StoreBlocks(client_, group_, keys_), keys_.size());
  }
  void Set(ServingMode mode) { world_.store->operators().SetServing(0, mode); }
  FakeMessage Ask(Verb verb) { return world_.CallKeys(client_, verb, group_, keys_); }

  SessionHarness world_;
  const std::vector<BlockKey> keys_ = MakeKeys(8, 1);
  SessionId client_ = 0;
  uint32_t group_ = 0;
};

TEST_F(Serving, ADrainedDomainTakesNothingNewAndSaysSo) {
  Set(ServingMode::kDraining);
  for (const Verb verb : {Verb::kMatch, Verb::kAcquire, Verb::kPrefetch, Verb::kReserve}) {
    const FakeMessage reply = Ask(verb);
    EXPECT_EQ(reply.status(), StatusCode::kBusy);
    EXPECT_THAT(reply.text(), AllOf(HasSubstr("being drained"), HasSubstr("--resume")));
  }
  EXPECT_EQ(world_.Stats().requests_unserved, 4u);
  EXPECT_EQ(world_.Stats().lease_count, 0u);
  EXPECT_EQ(Ask(Verb::kQuery).status(), StatusCode::kOk) << "who looks is served";
  Set(ServingMode::kServing);
  EXPECT_EQ(Ask(Verb::kAcquire).At<protocol::AcquireReply>().block_count, 8u);
}

TEST_F(Serving, WhatIsHeldIsServedToItsEnd) {
  const auto acquired = Ask(Verb::kAcquire).At<protocol::AcquireReply>();
  const std::vector<BlockKey> more = MakeKeys(2, 2);
  const FakeMessage reserved = world_.CallKeys(client_, Verb::kReserve, group_, more);
  const auto lease = reserved.At<protocol::ReserveReply>();
  ASSERT_EQ(lease.slot_count, 2u);
  Set(ServingMode::kDraining);
  protocol::DrainReply left;
  world_.store->operators().AddLeft(0, &left);
  EXPECT_EQ(left.lease_count, 2u);
  EXPECT_EQ(left.leased_blocks, 8u);
  EXPECT_EQ(left.leased_bytes, 8 * kArenaPageBytes);
  EXPECT_EQ(left.reserved_blocks, 2u);
  EXPECT_EQ(left.is_done, 0u);
  const SessionId rank = world_.Attach();
  const protocol::JoinRequest join{.token = acquired.token, .group_handle = world_.Open(rank, "g")};
  EXPECT_EQ(world_.Call(rank, Verb::kJoin, BytesOf(join)).status(), StatusCode::kOk);
  for (const SessionId session : {client_, rank}) {
    const protocol::ReleaseRequest release{.token = acquired.token};
    EXPECT_EQ(world_.Call(session, Verb::kRelease, BytesOf(release)).status(), StatusCode::kOk);
  }
  const protocol::AbortRequest abort{.token = lease.token};
  EXPECT_EQ(world_.Call(client_, Verb::kAbort, BytesOf(abort)).status(), StatusCode::kOk);
  world_.Settle();
  left = {};
  world_.store->operators().AddLeft(0, &left);
  EXPECT_EQ(left.is_done, 1u);
  EXPECT_EQ(left.lease_count + left.leased_blocks + left.reserved_blocks, 0u);
}

TEST_F(Serving, ABypassedDomainAnswersClientsThatAskItMisses) {
  Set(ServingMode::kBypassed);
  const FakeMessage acquired = Ask(Verb::kAcquire);
  ASSERT_EQ(acquired.status(), StatusCode::kOk);
  EXPECT_EQ(acquired.body.size(), sizeof(protocol::AcquireReply));
  EXPECT_EQ(acquired.At<protocol::AcquireReply>().block_count, 0u);
  EXPECT_TRUE(acquired.At<protocol::AcquireReply>().token.is_zero());
  for (const Verb verb : {Verb::kMatch, Verb::kPrefetch}) {
    const FakeMessage reply = Ask(verb);
    ASSERT_EQ(reply.status(), StatusCode::kOk);
    EXPECT_EQ(reply.At<protocol::MatchReply>().block_count, 0u);
  }
  const FakeMessage reserved = Ask(Verb::kReserve);
  ASSERT_EQ(reserved.status(), StatusCode::kOk);
  EXPECT_TRUE(reserved.At<protocol::ReserveReply>().token.is_zero());
  ASSERT_EQ(reserved.At<protocol::ReserveReply>().key_count, keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    const size_t at = sizeof(protocol::ReserveReply) + i * sizeof(protocol::ReservedKey);
    EXPECT_EQ(reserved.At<protocol::ReservedKey>(at).status,
              static_cast<uint8_t>(StatusCode::kNoSpace));
  }
  const auto many = MakeKeys(kResultsKept + 1, 3);
  const FakeMessage refused = world_.CallKeys(client_, Verb::kReserve, group_, many);
  EXPECT_EQ(refused.status(), StatusCode::kNoSpace) << "too many for one turn";
  EXPECT_THAT(refused.text(), HasSubstr("bypassed"));
  EXPECT_EQ(world_.Stats().requests_unserved, 5u);
}

TEST_F(Serving, ANoticePageGoesToWhoAsksForIt) {
  const SessionId session = world_.Connect();
  protocol::HelloRequest hello;
  hello.flags = protocol::kHelloNotices;
  ASSERT_EQ(world_.Call(session, Verb::kHello, BytesOf(hello)).status(), StatusCode::kOk);
  EXPECT_EQ(world_.transport.lines[session].attached, Transport::Attach::kArenaLifeAndNotices);
}

TEST_F(Serving, WithoutAnybodyWhoDrainsItIsNotSupported) {
  const FakeMessage reply =
      world_.Call(world_.AttachAs(0), protocol::kVerbDrain, BytesOf(protocol::DrainRequest{}));
  EXPECT_EQ(reply.status(), StatusCode::kUnsupported);
}

class Admins : public Serving {
 protected:
  void SetUp() override {
    Serving::SetUp();
    world_.sessions->SetAdmin(
        {.admin_uids = [this]() -> const AdminVerbs::Uids& { return admin_uids_; },
         .drain =
             [this](const PeerIdentity& peer, DrainAction action) {
               drained_by_.push_back(peer.uid);
               return protocol::DrainReply{.by_uid = static_cast<uint32_t>(action)};
             }});
  }
  FakeMessage Drain(uint32_t uid, DrainAction action) {
    return world_.Call(world_.AttachAs(uid), protocol::kVerbDrain,
                       BytesOf(protocol::DrainRequest{.action = action}));
  }
  StatusCode EvictAll(uint32_t uid) {
    return world_.CallKeys(world_.AttachAs(uid), Verb::kEvict, 0, {}, protocol::kEvictSubtree)
        .status();
  }
  StatusCode Pin(uint32_t uid, uint32_t flags = 0) {
    const SessionId session = world_.AttachAs(uid);
    return world_.CallKeys(session, Verb::kPin, world_.Open(session, "g"), keys_, flags).status();
  }

  AdminVerbs::Uids admin_uids_;
  std::vector<uint32_t> drained_by_;
};

TEST_F(Admins, DrainingIsTheirsAndLookingIsEverybodys) {
  const FakeMessage refused = Drain(kNobody, DrainAction::kBypass);
  EXPECT_EQ(refused.status(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.text(),
              AllOf(HasSubstr("uid 4000001"), HasSubstr("root"), HasSubstr("daemon.admin_uids")));
  EXPECT_TRUE(drained_by_.empty());
  EXPECT_EQ(Drain(kNobody, DrainAction::kStatus).status(), StatusCode::kOk);
  EXPECT_EQ(Drain(0, DrainAction::kBypass).status(), StatusCode::kOk);
  EXPECT_EQ(Drain(kNamed, DrainAction::kDrain).status(), StatusCode::kUnsupported);
  admin_uids_ = {kNamed};
  const FakeMessage drained = Drain(kNamed, DrainAction::kDrain);
  ASSERT_EQ(drained.status(), StatusCode::kOk);
  EXPECT_EQ(drained.At<protocol::DrainReply>().by_uid, 1u);
  EXPECT_EQ(drained_by_, (std::vector<uint32_t>{kNobody, 0, kNamed}));
}

TEST_F(Admins, WithoutNamesEnginesEvictAndPinAsBefore) {
  EXPECT_EQ(Pin(kNobody), StatusCode::kOk);
  EXPECT_EQ(EvictAll(kNobody), StatusCode::kOk);
}

TEST_F(Admins, WithNamesOthersRuleOverTheirOwnBlocksAlone) {
  admin_uids_.emplace();
  EXPECT_EQ(EvictAll(kNobody), StatusCode::kUnsupported);
  EXPECT_EQ(world_.Stats().block_count, 8u);
  EXPECT_EQ(Pin(kNobody), StatusCode::kUnsupported);
  EXPECT_EQ(Pin(kNobody, protocol::kPinClear), StatusCode::kOk);
  EXPECT_EQ(EvictAll(0), StatusCode::kOk);
  const SessionId session = world_.AttachAs(kNobody);
  const protocol::ResetRequest reset{.group_handle = world_.Open(session, "g")};
  EXPECT_EQ(world_.Call(session, Verb::kReset, BytesOf(reset)).status(), StatusCode::kOk);
}

TEST_F(Admins, WithNamesHintsOfOthersPinWithAnEndAlone) {
  using protocol::Hints;
  const Hints nothing;
  const Hints for_good{.flags = protocol::kHintPin};
  const Hints with_end{.ttl_s = 60, .flags = protocol::kHintPin};
  const Hints of_priority{
      .ttl_s = 60, .priority = 50, .flags = protocol::kHintPin | protocol::kHintTtlOfPriority};
  const auto pinned_by = [&](uint32_t uid, const Hints& reserve, const Hints& commit,
                             const Hints& touch) {
    static uint64_t prompt = 100;
    const SessionId session = world_.AttachAs(uid);
    const uint32_t group = world_.Open(session, "g");
    const std::vector<BlockKey> keys = MakeKeys(1, ++prompt);
    const uint64_t pinned_before = world_.Stats().engine_pinned_blocks;
    EXPECT_EQ(world_.StoreBlocks(session, group, keys, {.reserve = reserve, .commit = commit}), 1u);
    std::vector<std::byte> body(sizeof(protocol::TouchRequest));
    const std::vector<std::byte> named = world_.KeysBody(group, keys, 0, touch);
    body.insert(body.end(), named.begin(), named.end());
    EXPECT_EQ(world_.Call(session, Verb::kTouch, body).status(), StatusCode::kOk);
    return world_.Stats().engine_pinned_blocks - pinned_before;
  };
  EXPECT_EQ(pinned_by(kNobody, for_good, nothing, nothing), 1u);
  admin_uids_.emplace();
  EXPECT_EQ(world_.Stats().pin_hints_dropped, 0u);
  for (const Hints& hints : {for_good, of_priority}) {
    EXPECT_EQ(pinned_by(kNobody, hints, nothing, nothing), 0u);
    EXPECT_EQ(pinned_by(kNobody, nothing, hints, nothing), 0u);
    EXPECT_EQ(pinned_by(kNobody, nothing, nothing, hints), 0u);
    EXPECT_EQ(pinned_by(0, hints, nothing, nothing), 1u);
  }
  EXPECT_EQ(pinned_by(kNobody, with_end, nothing, nothing), 1u);
  EXPECT_EQ(pinned_by(kNobody, nothing, with_end, nothing), 1u);
  EXPECT_EQ(pinned_by(kNobody, nothing, nothing, with_end), 1u);
  EXPECT_EQ(world_.Stats().pin_hints_dropped, 6u);
}

TEST_F(Admins, WithNamesEvictingByFiltersAndPinsWithoutEndAreTheirs) {
  const auto evict = [&](uint32_t flags) {
    return world_.Call(world_.AttachAs(kNobody), protocol::kVerbEvictWhere,
                       BytesOf(protocol::EvictWhereRequest{.flags = flags}));
  };
  const auto pin = [&](uint32_t ttl_s) {
    return world_.Call(
        world_.AttachAs(kNobody), protocol::kVerbNamedPin,
        BytesOf(protocol::NamedPinRequest{
            .name = "one", .cap_bytes = 1, .ttl_s = ttl_s, .action = protocol::PinAction::kSet}));
  };
  EXPECT_EQ(pin(0).status(), StatusCode::kOk);
  admin_uids_.emplace();
  EXPECT_THAT(evict(0).text(), AllOf(HasSubstr("evicting by filters"), HasSubstr("--dry-run")));
  EXPECT_EQ(world_.Stats().block_count, 8u);
  EXPECT_EQ(evict(protocol::kEvictWhereDryRun).status(), StatusCode::kOk);
  EXPECT_THAT(pin(0).text(), AllOf(HasSubstr("named pin without an end"), HasSubstr("ttl_s")));
  EXPECT_EQ(pin(60).status(), StatusCode::kOk);
}

TEST_F(Admins, WhatTheyHaveDoneIsRemembered) {
  EXPECT_EQ(Drain(0, DrainAction::kBypass).status(), StatusCode::kOk);
  EXPECT_EQ(Drain(0, DrainAction::kStatus).status(), StatusCode::kOk);
  Drain(kNobody, DrainAction::kResume);
  const FakeMessage answer = world_.Call(world_.AttachAs(kNobody), protocol::kVerbOperatorLog,
                                         BytesOf(protocol::OperatorLogRequest{}));
  ASSERT_EQ(answer.At<protocol::OperatorLogReply>().entry_count, 1u) << "looking is no event";
  const auto entry = answer.At<protocol::OperatorLogEntry>(sizeof(protocol::OperatorLogReply));
  EXPECT_EQ(entry.verb, protocol::kVerbDrain);
  EXPECT_EQ(entry.uid, 0u);
  EXPECT_STREQ(entry.detail, "bypass");
}

TEST_F(Admins, AChangeOfTheConfigurationIsRememberedWithItsOutcomeOnceThatIsKnown) {
  AdminVerbs::Hooks::ConfigDone reload;
  world_.sessions->SetAdmin(
      {.config = [&](const PeerIdentity&, protocol::ConfigAction action, const std::string& text,
                     const AdminVerbs::Hooks::ConfigDone& done) {
        if (action == protocol::ConfigAction::kReload) {
          reload = done;
        } else if (text == "daemon.eviction=lru") {
          done({StatusCode::kInvalid, "lru is none"}, "");
        } else {
          done({}, "{}");
        }
      }});
  const auto ask = [&](protocol::ConfigAction action, const std::string& text) {
    const protocol::ConfigRequest request{.action = action};
    const auto head = BytesOf(request);
    const auto bytes = std::as_bytes(std::span(text));
    std::vector<std::byte> body(head.begin(), head.end());
    body.insert(body.end(), bytes.begin(), bytes.end());
    world_.Deliver(world_.AttachAs(0), world_.Frames(protocol::kVerbConfig, body, 1'000));
  };
  const auto log = [&] {
    const FakeMessage answer = world_.Call(world_.AttachAs(kNobody), protocol::kVerbOperatorLog,
                                           BytesOf(protocol::OperatorLogRequest{}));
    std::vector<std::pair<std::string, StatusCode>> events;
    for (uint32_t i = 0; i < answer.At<protocol::OperatorLogReply>().entry_count; ++i) {
      const auto entry = answer.At<protocol::OperatorLogEntry>(
          sizeof(protocol::OperatorLogReply) + i * sizeof(protocol::OperatorLogEntry));
      EXPECT_EQ(entry.verb, protocol::kVerbConfig);
      events.emplace_back(entry.detail, entry.status);
    }
    return events;
  };
  ask(protocol::ConfigAction::kReload, "");
  EXPECT_TRUE(log().empty()) << "nobody knows yet what becomes of it";
  ask(protocol::ConfigAction::kSet, "daemon.eviction=lru");
  ask(protocol::ConfigAction::kSet, "daemon.eviction=hazard");
  ask(protocol::ConfigAction::kGet, "daemon.eviction");
  reload({StatusCode::kIo, "cannot read it"}, "");
  EXPECT_THAT(log(),
              ::testing::ElementsAre(std::pair("reload", StatusCode::kIo),
                                     std::pair("set daemon.eviction", StatusCode::kOk),
                                     std::pair("set daemon.eviction", StatusCode::kInvalid)));
}

TEST_F(Admins, RecordingAndRepairAreTheirsWhateverIsNamed) {
  const auto record = [&](protocol::TraceAction action) {
    return world_.Call(world_.AttachAs(kNobody), protocol::kVerbTraceRecord,
                       BytesOf(protocol::TraceRecordRequest{.action = action}));
  };
  EXPECT_THAT(record(protocol::TraceAction::kStart).text(), HasSubstr("is for admins"));
  EXPECT_THAT(record(protocol::TraceAction::kStatus).text(), HasSubstr("records nothing"));
  const auto fsck = [&](uint32_t flags) {
    return world_.Call(world_.AttachAs(kNobody), protocol::kVerbFsck,
                       BytesOf(protocol::FsckRequest{.flags = flags}));
  };
  EXPECT_THAT(fsck(protocol::kFsckRepair).text(), HasSubstr("is for admins"));
  EXPECT_THAT(fsck(0).text(), HasSubstr("keeps nothing on drives"));
}

TEST_F(Admins, AnActionThatIsNoneIsRefused) {
  const FakeMessage reply = Drain(0, static_cast<DrainAction>(7));
  EXPECT_EQ(reply.status(), StatusCode::kInvalid);
  EXPECT_THAT(reply.text(), HasSubstr("drain action 7"));
}

}  // namespace
}  // namespace terrace::test
