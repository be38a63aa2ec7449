// Joins of leases whose slots come in pages.
#include <gmock/gmock.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>

#include "terrace/protocol_join.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;

constexpr uint32_t kMembers = 8;
constexpr uint64_t kAll = 0xFF;
constexpr uint32_t kSlotPages = 4;
constexpr LeaseToken kToken{.low = 5, .high = 5};

SpaceGroupSpec WideGroup() {
  SpaceGroupSpec spec = TestGroup();
  spec.name = "wide";
  const SpaceGroupMember member = spec.members[0];
  spec.members.clear();
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    spec.members.push_back(member);
    spec.members.back().spec.model = "wide";
    spec.members.back().spec.tp_rank = rank;
    spec.members.back().spec.tp_size = kMembers;
  }
  return spec;
}

SlotAddress AddressOf(uint32_t block, uint32_t member) {
  return {.segment = 0, .page = (block * kMembers + member) * kSlotPages};
}

class JoinPages : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Result<GroupRef> group = client_->Open(WideGroup(), kAll);
    ASSERT_TRUE(group.ok()) << client_->last_error();
    group_ = *group;
  }

  // The blocks from first_block to block_count; as the last page with a span of all.
  static std::vector<std::byte> ReadPage(uint32_t first_block, uint32_t block_count, bool is_last) {
    const uint32_t page_blocks = block_count > first_block ? block_count - first_block : 0;
    BodyBuilder body;
    body.Add(protocol::AcquireReply{.token = kToken,
                                    .member_mask = kAll,
                                    .block_count = block_count,
                                    .token_count = block_count * 16,
                                    .span_count = is_last ? 1u : 0u,
                                    .slot_count = page_blocks * kMembers,
                                    .flags = is_last ? 0 : protocol::kJoinHasMore});
    if (is_last) body.Add(protocol::BlockSpan{.block_count = block_count});
    for (uint32_t block = first_block; block < block_count; ++block) {
      for (uint32_t member = 0; member < kMembers; ++member) body.Add(AddressOf(block, member));
    }
    return body.bytes();
  }
  // A page's head says another lease, or other members, than the page before.
  enum class Stranger { kToken, kMembers };
  template <typename Head>
  static std::vector<std::byte> StrangePage(Stranger stranger) {
    Head head{.token = kToken, .member_mask = kAll};
    if (stranger == Stranger::kToken) head.token.low = 6;
    // The slots of a block of eight members are those of two blocks of four.
    if (stranger == Stranger::kMembers) head.member_mask = 0xF;
    BodyBuilder body;
    if constexpr (std::is_same_v<Head, protocol::AcquireReply>) {
      head.block_count = 5;
      head.token_count = 80;
      head.span_count = 1;
      head.slot_count = 2 * static_cast<uint32_t>(std::popcount(head.member_mask));
      body.Add(head).Add(protocol::BlockSpan{.block_count = 5});
      for (uint32_t i = 0; i < head.slot_count; ++i) body.Add(AddressOf(3, i));
    } else {
      head.key_count = 1;
      head.slot_count = static_cast<uint32_t>(std::popcount(head.member_mask));
      body.Add(head).Add(protocol::ReservedKey{.commit_id = 1003});
      for (uint32_t i = 0; i < head.slot_count; ++i) body.Add(SlotRef{.address = AddressOf(3, i)});
    }
    return body.bytes();
  }
  static std::vector<std::byte> WritePage(uint32_t first_key, uint32_t key_count, bool is_last) {
    BodyBuilder body;
    body.Add(protocol::ReserveReply{.token = kToken,
                                    .member_mask = kAll,
                                    .key_count = key_count,
                                    .slot_count = key_count * kMembers,
                                    .reserved = is_last ? 0 : protocol::kJoinHasMore});
    for (uint32_t key = 0; key < key_count; ++key) {
      body.Add(protocol::ReservedKey{.commit_id = 1000 + first_key + key});
    }
    for (uint32_t key = first_key; key < first_key + key_count; ++key) {
      for (uint32_t member = 0; member < kMembers; ++member) {
        body.Add(SlotRef{.address = AddressOf(key, member)});
      }
    }
    return body.bytes();
  }

  using Answer = std::function<void(ScriptedDaemon&, const PeerMessage&, uint32_t first_block)>;
  void AnswerJoins(Answer answer) {
    daemon_.set_handler([answer](ScriptedDaemon& daemon, const PeerMessage& message) {
      if (message.verb != Verb::kJoin) return false;
      answer(daemon, message, FirstBlockOf(message));
      return true;
    });
  }
  static uint32_t FirstBlockOf(const PeerMessage& join) {
    protocol::JoinPage page;
    if (join.body.size() == sizeof(protocol::JoinRequest) + sizeof(page)) {
      std::memcpy(&page, join.body.data() + sizeof(protocol::JoinRequest), sizeof(page));
    }
    return page.first_block;
  }
};

TEST_F(JoinPages, OfARead) {
  for (uint32_t block = 0; block < 5; ++block) {
    daemon_.arena()[AddressOf(block, 3).page * kArenaPageBytes] = std::byte(block + 1);
  }
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    daemon.Answer(message, StatusCode::kOk,
                  first_block == 0 ? ReadPage(0, 3, false) : ReadPage(3, 5, true));
  });
  Result<ReadLease> lease = client_->JoinRead(group_, kToken, 0);
  ASSERT_TRUE(lease.ok()) << client_->last_error();
  EXPECT_EQ(lease->block_count(), 5u);
  EXPECT_EQ(lease->ready_count(), 5u);
  for (uint32_t block = 0; block < 5; ++block) {
    ASSERT_TRUE(lease->CopyPart(block, 3, 0, buffer_).ok());
    EXPECT_EQ(buffer_[0], std::byte(block + 1));
  }
  const std::vector<PeerMessage> joins = daemon_.Received(Verb::kJoin);
  ASSERT_EQ(joins.size(), 2u);
  EXPECT_EQ(joins[0].Head<protocol::JoinRequest>().flags, protocol::kJoinPaged);
  EXPECT_EQ(joins[0].body.size(), sizeof(protocol::JoinRequest))
      << "as daemons before pages read it";
  lease->Release();
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
}

TEST_F(JoinPages, WhatHasLeftBetweenThemIsNotInTheLease) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    daemon.Answer(message, StatusCode::kOk,
                  first_block == 0 ? ReadPage(0, 3, false) : ReadPage(3, 2, true));
  });
  Result<ReadLease> lease = client_->JoinRead(group_, kToken, 0);
  ASSERT_TRUE(lease.ok()) << client_->last_error();
  EXPECT_EQ(lease->block_count(), 2u);
  EXPECT_FALSE(lease->CopyPart(2, 0, 0, buffer_).ok());
}

TEST_F(JoinPages, OfAWrite) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_key) {
    daemon.Answer(message, StatusCode::kOk,
                  first_key == 0   ? WritePage(0, 2, false)
                  : first_key == 2 ? WritePage(2, 3, false)
                                   : WritePage(5, 1, true));
  });
  Result<WriteLease> lease = client_->JoinWrite(group_, kToken, 0);
  ASSERT_TRUE(lease.ok()) << client_->last_error();
  const std::vector<PeerMessage> joins = daemon_.Received(Verb::kJoin);
  ASSERT_EQ(joins.size(), 3u);
  EXPECT_EQ(FirstBlockOf(joins[2]), 5u) << "as many as both pages before had";
  for (uint32_t key = 0; key < 6; ++key) {
    EXPECT_TRUE(lease->WritePart(key, 7, 1, part_).ok()) << key;
    EXPECT_EQ(daemon_.arena()[AddressOf(key, 7).page * kArenaPageBytes + 8192], std::byte{0x5a});
  }
}

TEST_F(JoinPages, ADaemonFromBeforeThemIsAskedWithout) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t) {
    const bool is_paged = message.Head<protocol::JoinRequest>().flags != 0;
    daemon.Answer(message, is_paged ? StatusCode::kInvalid : StatusCode::kOk,
                  is_paged ? std::vector<std::byte>() : ReadPage(0, 4, true));
  });
  Result<ReadLease> lease = client_->JoinRead(group_, kToken, 0);
  ASSERT_TRUE(lease.ok()) << client_->last_error();
  EXPECT_EQ(lease->block_count(), 4u);
}

TEST_F(JoinPages, OneThatFailsLeavesNothingBehind) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    if (first_block == 0) return daemon.Answer(message, StatusCode::kOk, ReadPage(0, 3, false));
    daemon.Answer(message, StatusCode::kGone, {});
  });
  EXPECT_EQ(client_->JoinRead(group_, kToken, 0).code(), StatusCode::kGone);
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
  EXPECT_TRUE(client_->is_connected());
}

// It would let go of the lease that its caller has joined again.
TEST_F(JoinPages, ALatePageEndsNoJoinThatCameAfter) {
  PeerMessage late;
  bool is_late = false;
  uint32_t first_pages = 0;
  AnswerJoins([&](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    if (first_block == 0 && ++first_pages == 1) {
      return daemon.Answer(message, StatusCode::kOk, ReadPage(0, 3, false));
    }
    if (!is_late) {
      late = message;  // its caller gives up first
      is_late = true;
      return;
    }
    daemon.Answer(late, StatusCode::kOk, ReadPage(3, 5, true));
    daemon.Answer(message, StatusCode::kOk, ReadPage(0, 5, true));
  });
  EXPECT_EQ(client_->JoinRead(group_, kToken, 0).code(), StatusCode::kBusy);
  Result<ReadLease> lease = client_->JoinRead(group_, kToken, 0);
  ASSERT_TRUE(lease.ok()) << client_->last_error();
  (void)client_->Match(group_, TestKeys(1));  // all that was sent before has arrived
  EXPECT_EQ(daemon_.Received(Verb::kRelease).size(), 1u) << "of the first Join alone";
}

// The daemon takes the session for joined from its first answer on, late or not.
TEST_F(JoinPages, OneThatWasGivenUpIsLetGoBeforeTheNext) {
  ClientOptions options = TestOptions(daemon_);
  options.default_deadline_us = 100'000;
  client_ = Client::Create(options).value();
  ASSERT_TRUE(client_->WaitConnected(kLongUs).ok());
  Result<GroupRef> group = client_->Open(WideGroup(), kAll, kLongUs);
  ASSERT_TRUE(group.ok()) << client_->last_error();
  group_ = *group;
  struct Session {
    bool has_joined = false;
    bool is_late = true;
  };
  // The handler's: the last Release comes when the test is over.
  const auto session = std::make_shared<Session>();
  daemon_.set_handler([session](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb == Verb::kRelease) session->has_joined = false;
    if (message.verb != Verb::kJoin) return false;
    if (std::exchange(session->has_joined, true)) {
      daemon.Answer(message, StatusCode::kInvalid, {});
    } else if (!std::exchange(session->is_late, false)) {
      daemon.Answer(message, StatusCode::kOk, ReadPage(0, 5, true));
    }
    return true;
  });
  EXPECT_EQ(client_->JoinRead(group_, kToken, 0).code(), StatusCode::kBusy);
  EXPECT_EQ(client_->JoinRead(group_, kToken, 0).code(), StatusCode::kBusy);
  EXPECT_THAT(client_->last_error(), testing::HasSubstr("given up at its deadline"));
  ASSERT_TRUE(daemon_.WaitFor(Verb::kJoin, 1));
  ASSERT_EQ(daemon_.Received(Verb::kJoin).size(), 1u);
  daemon_.Answer(daemon_.Received(Verb::kJoin)[0], StatusCode::kOk, ReadPage(0, 5, true));
  ASSERT_TRUE(Eventually([&] {
    const Result<ReadLease> lease = client_->JoinRead(group_, kToken, 0);
    EXPECT_EQ(lease.ok() ? lease->block_count() : 5, 5u);
    EXPECT_NE(lease.code(), StatusCode::kInvalid);
    return lease.ok();
  }));
}

// Another thread reads a page while the caller's patience ends: the lease is let go once, whoever
// was first. Twice would end a Join that came after, and without it the lease would stay.
TEST_F(JoinPages, AreLetGoOnceWhoeverGivesThemUp) {
  constexpr uint32_t kJoins = 1'500;
  constexpr uint32_t kPatienceUs = 3'000;
  ClientOptions options = TestOptions(daemon_);
  options.default_deadline_us = kPatienceUs;
  client_ = Client::Create(options).value();
  ASSERT_TRUE(client_->WaitConnected(kLongUs).ok());
  ASSERT_TRUE(Eventually([&] {
    const Result<GroupRef> group = client_->Open(WideGroup(), kAll);
    if (group.ok()) group_ = *group;
    return group.ok();
  }));
  std::mt19937 random(1);
  std::atomic<uint32_t> first_pages = 0;
  AnswerJoins([&](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    // Some first pages come late, too.
    const bool is_late = first_block > 0 || random() % 4 == 0;
    const uint32_t pause_us = is_late ? kPatienceUs - 700 + random() % 800 : 0;
    std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    first_pages += first_block == 0 ? 1 : 0;
    daemon.Answer(message, StatusCode::kOk,
                  first_block == 0 ? ReadPage(0, 3, false) : ReadPage(3, 5, true));
  });
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    while (!is_over) (void)client_->Match(group_, TestKeys(1), {.deadline_us = 20'000});
  });
  uint32_t late_count = 0;
  for (uint32_t i = 0; i < kJoins; ++i) {
    late_count += client_->JoinRead(group_, kToken, 0).ok() ? 0 : 1;
  }
  is_over = true;
  reader.join();
  (void)client_->Match(group_, TestKeys(1), {.deadline_us = 5'000'000});
  EXPECT_TRUE(Eventually([&] { return daemon_.Received(Verb::kRelease).size() >= first_pages; }));
  EXPECT_EQ(daemon_.Received(Verb::kRelease).size(), first_pages.load());
  EXPECT_GT(late_count, 0u);
  EXPECT_LT(late_count, kJoins);
}

// Each says that another follows, and brings nothing.
TEST_F(JoinPages, ThatLeadNowhereEndTheConnection) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    daemon.Answer(message, StatusCode::kOk, ReadPage(first_block, 3, false));
  });
  EXPECT_FALSE(client_->JoinRead(group_, kToken, 0).ok());
  EXPECT_TRUE(Eventually([&] { return daemon_.connection_count() > 1; }));
  EXPECT_EQ(daemon_.Received(Verb::kJoin).size(), 2u);
}

TEST_F(JoinPages, WithSpansBeforeTheLastEndTheConnection) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    std::vector<std::byte> page = ReadPage(first_block, first_block + 3, true);
    protocol::AcquireReply head;
    std::memcpy(&head, page.data(), sizeof(head));
    head.flags = first_block == 0 ? protocol::kJoinHasMore : 0;
    std::memcpy(page.data(), &head, sizeof(head));
    daemon.Answer(message, StatusCode::kOk, page);
  });
  EXPECT_FALSE(client_->JoinRead(group_, kToken, 0).ok());
  EXPECT_TRUE(Eventually([&] { return daemon_.connection_count() > 1; }));
}

TEST_F(JoinPages, OfAnotherLeaseOrOtherMembersEndTheConnection) {
  uint32_t connections = daemon_.connection_count();
  for (const Stranger stranger : {Stranger::kToken, Stranger::kMembers}) {
    AnswerJoins([stranger](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first) {
      daemon.Answer(
          message, StatusCode::kOk,
          first == 0 ? ReadPage(0, 3, false) : StrangePage<protocol::AcquireReply>(stranger));
    });
    EXPECT_FALSE(client_->JoinRead(group_, kToken, 0).ok());
    ASSERT_TRUE(Eventually([&] { return daemon_.connection_count() > connections; }));
    ASSERT_TRUE(Eventually([&] { return client_->is_connected(); }));
    connections = daemon_.connection_count();
    AnswerJoins([stranger](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first) {
      daemon.Answer(
          message, StatusCode::kOk,
          first == 0 ? WritePage(0, 3, false) : StrangePage<protocol::ReserveReply>(stranger));
    });
    EXPECT_FALSE(client_->JoinWrite(group_, kToken, 0).ok());
    ASSERT_TRUE(Eventually([&] { return daemon_.connection_count() > connections; }));
    ASSERT_TRUE(Eventually([&] { return client_->is_connected(); }));
    connections = daemon_.connection_count();
  }
}

TEST_F(JoinPages, OfAWriteThatLeadNowhereEndTheConnection) {
  AnswerJoins([](ScriptedDaemon& daemon, const PeerMessage& message, uint32_t first_block) {
    daemon.Answer(message, StatusCode::kOk, WritePage(first_block, 3 - first_block, false));
  });
  EXPECT_FALSE(client_->JoinWrite(group_, kToken, 0).ok());
  EXPECT_TRUE(Eventually([&] { return daemon_.connection_count() > 1; }));
  EXPECT_EQ(daemon_.Received(Verb::kJoin).size(), 2u);
}

}  // namespace
}  // namespace terrace
