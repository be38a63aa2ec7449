// Sessions whose user is none of the domain's writer_uids: what they are refused, and what not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "daemon/session/admin_verbs.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_operator.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::test {
namespace {

using protocol::Verb;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kWriter = 1000;  // as whom the harness connects
constexpr uint32_t kReader = 4'000'003;
constexpr uint32_t kAdmin = 4'000'004;

class ReaderSessions : public ::testing::Test {
 protected:
  void SetUp() override {
    world_.sessions->SetAdmin(
        {.admin_uids = [this]() -> const AdminVerbs::Uids& { return admin_uids_; },
         .writer_uids = [this](uint32_t) -> const AdminVerbs::Uids& { return writer_uids_; }});
    writer_ = world_.Attach();
    group_ = world_.Open(writer_, "g");
    ASSERT_EQ(world_.StoreBlocks(writer_, group_, keys_), keys_.size());
  }
  SessionId AttachReader(uint32_t uid = kReader, uint16_t flags = protocol::kHelloReader) {
    const SessionId session = world_.ConnectAs(uid, 0);
    protocol::HelloRequest hello;
    hello.flags = flags;
    said_ = world_.Call(session, Verb::kHello, BytesOf(hello));
    return session;
  }
  FakeMessage AskOfKeys(SessionId session, Verb verb, protocol::Hints hints, uint32_t flags = 0) {
    std::vector<std::byte> body = world_.KeysBody(world_.Open(session, "g"), keys_, flags);
    protocol::KeysRequest head;
    std::memcpy(&head, body.data(), sizeof(head));
    head.hints = hints;
    std::memcpy(body.data(), &head, sizeof(head));
    if (verb == Verb::kTouch) body.insert(body.begin(), sizeof(protocol::TouchRequest), {});
    return world_.Call(session, verb, body);
  }
  static void ExpectRefused(const FakeMessage& reply, const char* what) {
    EXPECT_EQ(reply.status(), StatusCode::kUnsupported) << what;
    EXPECT_THAT(reply.text(), AllOf(HasSubstr(std::string(what) + " is for writers"),
                                    HasSubstr("uid 4000003"), HasSubstr("writer_uids")));
  }

  SessionHarness world_;
  AdminVerbs::Uids admin_uids_ = {{kAdmin}};
  AdminVerbs::Uids writer_uids_ = {{kWriter}};
  const std::vector<BlockKey> keys_ = MakeKeys(8, 1);
  SessionId writer_ = 0;
  uint32_t group_ = 0;
  FakeMessage said_;
};

TEST_F(ReaderSessions, AreHandedMemoryToReadAlone) {
  const SessionId plain = AttachReader();
  EXPECT_EQ(world_.transport.lines[plain].attached, Transport::Attach::kReadersArenaAndLife);
  const SessionId told = AttachReader(kReader, protocol::kHelloReader | protocol::kHelloNotices);
  EXPECT_EQ(world_.transport.lines[told].attached, Transport::Attach::kReadersArenaLifeAndNotices);
  EXPECT_EQ(world_.transport.lines[writer_].attached, Transport::Attach::kArenaAndLife);
  for (const SessionSummary& row : world_.sessions->Summaries(0, 8)) {
    EXPECT_EQ(row.is_reader, row.peer.uid == kReader);
  }
}

TEST_F(ReaderSessions, OfAnOlderLibraryAreRefusedAtHello) {
  const SessionId session = AttachReader(kReader, protocol::kHelloNotices);
  EXPECT_EQ(said_.status(), StatusCode::kUnsupported);
  EXPECT_THAT(said_.text(), AllOf(HasSubstr("uid 4000003 is a reader"), HasSubstr("writer_uids"),
                                  HasSubstr("update libterrace")));
  EXPECT_EQ(world_.transport.lines[session].attached, Transport::Attach::kNothing);
}

TEST_F(ReaderSessions, AreServedWhatOnlyLooksAndLoads) {
  const SessionId reader = AttachReader();
  const uint32_t group = world_.Open(reader, "g");
  const auto acquired = world_.CallKeys(reader, Verb::kAcquire, group, keys_);
  EXPECT_EQ(acquired.At<protocol::AcquireReply>().block_count, keys_.size());
  for (const Verb verb : {Verb::kMatch, Verb::kPrefetch, Verb::kQuery}) {
    EXPECT_EQ(world_.CallKeys(reader, verb, group, keys_).status(), StatusCode::kOk);
  }
  EXPECT_EQ(
      AskOfKeys(reader, Verb::kTouch, {.end_reason = protocol::EndReason::kEndOfTurn}).status(),
      StatusCode::kOk);
  EXPECT_EQ(AskOfKeys(reader, Verb::kEvict, {}, protocol::kEvictDryRun).status(), StatusCode::kOk);
  const protocol::NamedPinRequest list{.action = protocol::PinAction::kList};
  EXPECT_EQ(world_.Call(reader, protocol::kVerbNamedPin, BytesOf(list)).status(), StatusCode::kOk);
  const protocol::ReleaseRequest release{.token = acquired.At<protocol::AcquireReply>().token};
  EXPECT_EQ(world_.Call(reader, Verb::kRelease, BytesOf(release)).status(), StatusCode::kOk);
}

TEST_F(ReaderSessions, StoreNothing) {
  const SessionId reader = AttachReader();
  const auto lease =
      world_.CallKeys(writer_, Verb::kReserve, group_, MakeKeys(2, 2)).At<protocol::ReserveReply>();
  ExpectRefused(AskOfKeys(reader, Verb::kReserve, {}), "Reserve");
  const protocol::CommitRequest commit{.token = lease.token};
  ExpectRefused(world_.Call(reader, Verb::kCommit, BytesOf(commit)), "Commit");
  const protocol::AbortRequest abort{.token = lease.token};
  ExpectRefused(world_.Call(reader, Verb::kAbort, BytesOf(abort)), "Abort");
  const protocol::JoinRequest join{.token = lease.token, .group_handle = world_.Open(reader, "g")};
  ExpectRefused(world_.Call(reader, Verb::kJoin, BytesOf(join)), "Join of a write lease");
  ExpectRefused(
      world_.Call(reader, protocol::kVerbDeviceAttach, BytesOf(protocol::DeviceAttachRequest{})),
      "DeviceAttach");
  EXPECT_EQ(world_.Stats().reserved_count, 2u) << "the writer's";
  EXPECT_EQ(world_.Call(writer_, Verb::kAbort, BytesOf(abort)).status(), StatusCode::kOk);
}

TEST_F(ReaderSessions, SayNothingOfWhatBecomesOfBlocks) {
  const SessionId reader = AttachReader();
  ExpectRefused(AskOfKeys(reader, Verb::kEvict, {}), "Evict");
  ExpectRefused(AskOfKeys(reader, Verb::kPin, {.ttl_s = 1}), "Pin");
  for (const protocol::Hints& hints : {protocol::Hints{.ttl_s = 1}, protocol::Hints{.priority = 0},
                                       protocol::Hints{.flags = protocol::kHintNoStore},
                                       protocol::Hints{.ttl_s = 9, .flags = protocol::kHintPin}}) {
    ExpectRefused(AskOfKeys(reader, Verb::kTouch, hints), "Touch");
  }
  const protocol::ResetRequest reset{.group_handle = world_.Open(reader, "g")};
  ExpectRefused(world_.Call(reader, Verb::kReset, BytesOf(reset)), "Reset");
  admin_uids_.reset();  // what everybody may then, a reader may not
  ExpectRefused(
      world_.Call(reader, protocol::kVerbEvictWhere, BytesOf(protocol::EvictWhereRequest{})),
      "EvictWhere");
  const protocol::NamedPinRequest pin{
      .name = "one", .cap_bytes = 1, .ttl_s = 60, .action = protocol::PinAction::kSet};
  ExpectRefused(world_.Call(reader, protocol::kVerbNamedPin, BytesOf(pin)), "NamedPin");
  EXPECT_EQ(world_.Stats().block_count, keys_.size());
}

TEST_F(ReaderSessions, AnAdminAmongThemRulesAndDoesNotStore) {
  const SessionId admin = AttachReader(kAdmin);
  EXPECT_EQ(AskOfKeys(admin, Verb::kReserve, {}).status(), StatusCode::kUnsupported);
  EXPECT_EQ(AskOfKeys(admin, Verb::kEvict, {}, protocol::kEvictSubtree).status(), StatusCode::kOk);
  EXPECT_EQ(world_.Stats().block_count, 0u);
}

TEST_F(ReaderSessions, AreWhatTheConfigurationSaidWhenTheyBegan) {
  const SessionId reader = AttachReader();
  writer_uids_.emplace();  // nobody
  EXPECT_EQ(AskOfKeys(writer_, Verb::kReserve, {}).status(), StatusCode::kOk);
  EXPECT_EQ(AskOfKeys(AttachReader(kWriter), Verb::kReserve, {}).status(),
            StatusCode::kUnsupported);
  writer_uids_.reset();  // everybody
  EXPECT_EQ(AskOfKeys(reader, Verb::kReserve, {}).status(), StatusCode::kUnsupported);
  EXPECT_EQ(AskOfKeys(AttachReader(kReader, 0), Verb::kReserve, {}).status(), StatusCode::kOk);
}

}  // namespace
}  // namespace terrace::test
