// However much one request asks for, and whatever it sets off: no turn does more than so much.
#include <gtest/gtest.h>

#include <cstring>

#include "unit/daemon/session/session_harness.h"
#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;
using test::BytesOf;
using test::FakeMessage;
using test::SessionHarness;

// Blocks, nodes and completions, and bytes: a turn of so many takes less than a millisecond.
constexpr uint64_t kWorkMax = 8192;
constexpr size_t kSentBytesMax = 512 * kKiB;

template <typename T>
void Append(std::vector<std::byte>* body, const T& value) {
  const auto bytes = BytesOf(value);
  body->insert(body->end(), bytes.begin(), bytes.end());
}

// A harness whose every turn is looked at.
class Turns : public ::testing::Test {
 protected:
  explicit Turns(uint32_t segments = 160) : h({.segments = segments}) {}

  void Send(SessionId session, Verb verb, std::span<const std::byte> body) {
    SendFrames(session, h.Frames(verb, body, ++last_request));
  }
  void SendFrames(SessionId session, std::span<const std::byte> frames) {
    Turn([&] { h.sessions->OnBytes(session, frames); });
    Run();
  }
  void Run() {
    while (h.sessions->has_work() || h.store->events().NextTimerUs() <= h.clock.NowUs()) {
      if (h.sessions->has_work()) Turn([&] { h.sessions->OnTurn(); });
      if (h.store->events().NextTimerUs() > h.clock.NowUs()) continue;
      Turn([&] {
        h.store->events().OnTimer();
        h.sessions->Flush();
      });
    }
  }
  template <typename Work>
  void Turn(const Work& work) {
    const uint64_t work_before = h.store->work();
    const size_t sent_before = SentBytes();
    work();
    ++turn_count;
    most_work = std::max(most_work, h.store->work() - work_before);
    most_sent_bytes = std::max(most_sent_bytes, SentBytes() - sent_before);
  }
  size_t SentBytes() const {
    size_t bytes = 0;
    for (const auto& [session, line] : h.transport.lines) bytes += line.sent.size();
    return bytes;
  }
  void ExpectShort() const {
    EXPECT_LE(most_work, kWorkMax) << "of " << turn_count << " turns";
    EXPECT_LE(most_sent_bytes, kSentBytesMax) << "of " << turn_count << " turns";
  }

  SessionHarness h;
  uint64_t last_request = 1'000'000;
  uint64_t most_work = 0;
  size_t most_sent_bytes = 0;
  uint32_t turn_count = 0;
};

// Blocks of two members, of whom one is committed.
class TurnsOfFollowers : public Turns {
 protected:
  static constexpr uint32_t kBlocks = 12'000;

  TurnsOfFollowers() : keys(test::MakeKeys(kBlocks, 3)) {
    // Memory comes while it is asked for: all that is wanted below, and it is free again.
    EXPECT_EQ(h.StoreBlocks(writer, group, test::MakeKeys(kBlocks, 9)), kBlocks);
    EXPECT_EQ(h.Call(writer, Verb::kReset, BytesOf(protocol::ResetRequest{.group_handle = group}))
                  .status(),
              StatusCode::kOk);
    const FakeMessage answer = h.CallKeys(writer, Verb::kReserve, group, keys);
    reserved = answer.At<protocol::ReserveReply>();
    EXPECT_EQ(reserved.slot_count, 2 * kBlocks);
    slots.resize(reserved.slot_count);
    std::memcpy(slots.data(),
                answer.body.data() + sizeof(reserved) + kBlocks * sizeof(protocol::ReservedKey),
                slots.size() * sizeof(SlotRef));
  }
  std::vector<std::byte> CommitBody(uint32_t first, uint32_t end, uint16_t member, uint32_t step) {
    std::vector<std::byte> entries;
    uint32_t entry_count = 0;
    for (uint32_t i = first; i < end; i += step, ++entry_count) {
      const SlotRef& slot = slots[size_t{i} * 2 + member];
      Append(&entries, protocol::CommitEntry{.key_index = i,
                                             .member = member,
                                             .part_count = 1,
                                             .row = slot.row,
                                             .segment = slot.address.segment,
                                             .generation = slot.generation});
    }
    std::vector<std::byte> body;
    Append(&body, protocol::CommitRequest{.token = reserved.token, .entry_count = entry_count});
    body.insert(body.end(), entries.begin(), entries.end());
    return body;
  }
  void Follow() {
    most_work = most_sent_bytes = turn_count = 0;
    Send(reader, Verb::kAcquire, h.KeysBody(reader_group, keys, protocol::kAcquireFollow));
    acquire = last_request;
  }
  // Of the Acquire, since the last call.
  std::vector<protocol::Completion> Completions() {
    std::vector<protocol::Completion> completions;
    for (const FakeMessage& message : h.transport.Take(reader)) {
      if (message.header.verb != Verb::kCompletion) continue;
      EXPECT_EQ(message.header.request_id, acquire);
      completions.push_back(message.At<protocol::Completion>());
    }
    return completions;
  }
  static uint32_t BlockCount(const std::vector<protocol::Completion>& completions) {
    uint32_t count = 0;
    for (const protocol::Completion& completion : completions) count += completion.block_count;
    return count;
  }

  SessionId writer = h.Attach(), reader = h.Attach();
  uint32_t group = h.Open(writer, "g", 2), reader_group = h.Open(reader, "g", 2);
  std::vector<BlockKey> keys;
  protocol::ReserveReply reserved;
  std::vector<SlotRef> slots;
  uint64_t acquire = 0;
};

TEST_F(TurnsOfFollowers, TellOfAlikeBlocksTogether) {
  h.Call(writer, Verb::kCommit, CommitBody(0, kBlocks, 0, 1));
  Follow();
  ExpectShort();
  const auto completions = Completions();
  EXPECT_LT(completions.size(), 20u);
  EXPECT_EQ(BlockCount(completions), kBlocks);
}

TEST_F(TurnsOfFollowers, TellOfBlocksThatDifferSomeATurn) {
  h.Call(writer, Verb::kCommit, CommitBody(0, kBlocks, 0, 2));
  Follow();
  ExpectShort();
  EXPECT_EQ(BlockCount(Completions()), kBlocks / 2);
}

TEST_F(TurnsOfFollowers, TellWhatIsCommittedLater) {
  Follow();
  most_work = most_sent_bytes = 0;
  for (const uint16_t member : {0, 1}) {
    Completions();
    Send(writer, Verb::kCommit, CommitBody(0, kBlocks, member, 1));
    ExpectShort();
  }
  const auto completions = Completions();
  EXPECT_LT(completions.size(), 100u);
  EXPECT_EQ(BlockCount(completions), 2 * kBlocks) << "parts, and whole blocks";
  EXPECT_TRUE((completions.back().flags & protocol::kCompletionLast) != 0);
}

// Each of many readers is told of each block.
TEST_F(TurnsOfFollowers, OfWhomThereAreMany) {
  Follow();
  for (int i = 0; i < 40; ++i) {
    Send(reader, Verb::kAcquire,
         h.KeysBody(reader_group, std::span(keys).first(2000), protocol::kAcquireFollow));
  }
  most_work = most_sent_bytes = 0;
  Send(writer, Verb::kCommit, CommitBody(0, 2000, 0, 1));
  ExpectShort();
}

// The writer gives all of it up: each is told once, not of each block.
TEST_F(TurnsOfFollowers, OfWhomManyAreLetDown) {
  Follow();
  for (int i = 0; i < 40; ++i) {
    Send(reader, Verb::kAcquire,
         h.KeysBody(reader_group, std::span(keys).first(2000), protocol::kAcquireFollow));
  }
  h.transport.Take(reader);
  most_work = most_sent_bytes = 0;
  Send(writer, Verb::kAbort, BytesOf(protocol::AbortRequest{.token = reserved.token}));
  ExpectShort();
  uint32_t told_count = 0;
  for (const FakeMessage& message : h.transport.Take(reader)) {
    told_count += message.header.verb == Verb::kCompletion;
  }
  EXPECT_EQ(told_count, 41u);
}

TEST_F(TurnsOfFollowers, AWriterThatDiesLetsManyDownSomeATurn) {
  Follow();
  for (int i = 0; i < 40; ++i) {
    Send(reader, Verb::kAcquire,
         h.KeysBody(reader_group, std::span(keys).first(2000), protocol::kAcquireFollow));
  }
  most_work = most_sent_bytes = 0;
  Turn([&] { h.sessions->OnHangUp(writer); });
  Run();
  h.sessions->OnProofOfDeath(writer);
  Run();
  ExpectShort();
}

TEST_F(TurnsOfFollowers, GiveUpAllOfThemSomeATurn) {
  Follow();
  Completions();
  most_work = 0;
  Send(reader, Verb::kCancel, BytesOf(protocol::CancelRequest{.request_id = acquire}));
  ExpectShort();
  const auto completions = Completions();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].first_block, 0u);
  EXPECT_TRUE((completions[0].flags & protocol::kCompletionLast) != 0);
}

TEST_F(TurnsOfFollowers, LoseAllOfThemSomeATurn) {
  Follow();
  Completions();
  most_work = 0;
  Turn([&] { h.sessions->OnHangUp(writer); });
  Run();
  ExpectShort();
  const auto completions = Completions();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].first_block, 0u);
}

TEST_F(TurnsOfFollowers, LeaveSomeATurn) {
  Follow();
  most_work = 0;
  Turn([&] { h.sessions->OnHangUp(reader); });
  Run();
  ExpectShort();
  Turn([&] { h.sessions->OnProofOfDeath(reader); });
  Run();
  ExpectShort();
  EXPECT_EQ(h.Stats().pinned_count, kBlocks) << "by its writer";
  h.store->CheckInvariants(CheckScope::kFull);
  // What they gave back is used again.
  reader = h.Attach();
  reader_group = h.Open(reader, "g", 2);
  Follow();
  Completions();
  h.Call(writer, Verb::kCommit, CommitBody(0, 100, 0, 1));
  EXPECT_EQ(BlockCount(Completions()), 100u);
}

TEST_F(Turns, ListsThatAreAskedForTogetherAreAnsweredOneByOne) {
  const SessionId session = h.Attach();
  const uint32_t group = h.Open(session, "g");
  ASSERT_EQ(h.StoreBlocks(session, group, test::MakeKeys(2048, 5)), 2048u);
  const protocol::ListRequest list{.group_handle = group, .entry_count_max = 1024};
  std::vector<std::byte> frames;
  for (int i = 0; i < 16; ++i) {
    const auto one = h.Frames(Verb::kList, BytesOf(list), ++last_request);
    frames.insert(frames.end(), one.begin(), one.end());
  }
  h.transport.Take(session);
  most_work = most_sent_bytes = 0;
  SendFrames(session, frames);
  ExpectShort();
  const std::vector<FakeMessage> answers = h.transport.Take(session);
  ASSERT_EQ(answers.size(), 16u);
  for (const FakeMessage& answer : answers) {
    EXPECT_GT(answer.At<protocol::ListReply>().entry_count, 1000u);
    EXPECT_NE(answer.At<protocol::ListReply>().cursor, 0u);
  }
}

// A new block's checksum roots are cleared, 4,096 here, and where there is no room it has gone
// before its request is answered.
TEST_F(Turns, KeysOfManyPartsForWhichThereIsNoRoomAreAskedForFewATurnAndOnce) {
  constexpr uint32_t kKeys = 4000;
  const SessionId session = h.Attach();
  const uint32_t group = h.Open(session, "wide", 64, ~uint64_t{0}, 64);
  turn_count = 0;
  const uint64_t work_before = h.store->work();
  Send(session, Verb::kReserve, h.KeysBody(group, test::MakeKeys(kKeys, 5), protocol::kKeysFlat));
  EXPECT_GE(turn_count, 200u) << "some 20 keys a turn";
  EXPECT_LE(h.store->work() - work_before, kKeys * 8) << "33 of it for each block that was made";
  ExpectShort();
}

// What a lease held is let go by whatever comes next; a request that does so has had its turn.
TEST_F(Turns, ReleasesThatComeTogetherAreDoneOneByOne) {
  constexpr uint32_t kBlocks = 1000;
  constexpr int kLeases = 32;
  const SessionId session = h.Attach();
  const uint32_t group = h.Open(session, "g");
  const auto keys = test::MakeKeys(kBlocks, 5);
  ASSERT_EQ(h.StoreBlocks(session, group, keys), kBlocks);
  std::vector<std::byte> frames;
  for (int i = 0; i < kLeases; ++i) {
    const FakeMessage got = h.CallKeys(session, Verb::kAcquire, group, keys);
    ASSERT_EQ(got.At<protocol::AcquireReply>().block_count, kBlocks);
    const protocol::ReleaseRequest release{.token = got.At<protocol::AcquireReply>().token};
    const auto one = h.Frames(Verb::kRelease, BytesOf(release), ++last_request);
    frames.insert(frames.end(), one.begin(), one.end());
  }
  most_work = 0;
  SendFrames(session, frames);
  ExpectShort();
  EXPECT_EQ(h.Stats().pinned_count, 0u);
}

// A tier that counts how often it is asked what it has erased.
class AskedTier final : public sim::MemoryTier {
 public:
  using sim::MemoryTier::MemoryTier;
  ErasureProgress erasures() const override {
    ++asked_count;
    return sim::MemoryTier::erasures();
  }
  mutable uint32_t asked_count = 0;
};

TEST(TurnsOfErasures, LookAtThoseThatCameFirst) {
  constexpr uint32_t kPending = 500;
  WorldOptions options{.lower_tier_count = 1};
  AskedTier* tier = nullptr;
  options.make_tier = [&tier](sim::MemoryTier::Options tier_options) {
    tier_options.persist_us_max = 20'000'000;
    auto made = std::make_unique<AskedTier>(tier_options);
    tier = made.get();
    return made;
  };
  StoreWorld w(options);
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = StoreWorld::Keys(4);
  w.Put(s, group, keys);
  w.Advance(100'000);
  w.Evict(w.Query(s, group, keys));
  for (uint32_t i = 0; i < kPending; ++i) {
    ASSERT_EQ(w.store->operators().AwaitErasures(s, 5000 + i).code(), StatusCode::kBusy);
  }
  tier->asked_count = 0;
  ASSERT_TRUE(w.store->leases().Touch(w.Query(s, group, keys)).ok());
  EXPECT_LE(tier->asked_count, 4u);
  w.Advance(3'000'000);
  ASSERT_EQ(w.listener.waits.size(), kPending);
  for (uint32_t i = 0; i < kPending; ++i) EXPECT_EQ(w.listener.waits[i].request_id, 5000 + i);
}

}  // namespace
}  // namespace terrace
