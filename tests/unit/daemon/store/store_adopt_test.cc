// What a store makes of the DRAM that its predecessor left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using protocol::SpanState;
using testing::IsEmpty;

class StoreAdopt : public testing::Test {
 protected:
  explicit StoreAdopt(const WorldOptions& options = {.segments_max = 4}) : world_(options) {
    writer_ = world_.Open();
    group_ = world_.OpenSimple(writer_);
  }
  // A session of the successor.
  SessionId Arrive(uint32_t uid = 1) {
    const SessionId session = world_.Open(0, uid);
    group_ = world_.OpenSimple(session);
    return session;
  }
  // Puts the blocks that are not there, as fast as the arena grows.
  uint32_t Save(SessionId session, const std::vector<BlockKey>& keys) {
    uint32_t saved = 0;
    for (uint32_t i = 0; i < world_.options().segments_max && saved < keys.size(); ++i) {
      saved += world_.Put(session, group_, keys);
      world_.Run();
    }
    return saved;
  }
  // Leads Acquire to its end; the blocks that came, each with the right bytes.
  uint32_t Load(SessionId session, const std::vector<BlockKey>& keys) {
    const AcquireResult acquired = world_.Acquire(session, group_, keys);
    world_.Advance(100'000);
    uint32_t good = acquired.reply.block_count;
    for (const auto& told : world_.listener.completions) {
      if (told.session == session && told.status != StatusCode::kOk) {
        good = std::min(good, told.completion.first_block);
      }
    }
    for (uint32_t i = 0; i < good; ++i) {
      EXPECT_TRUE(world_.Holds(session, group_, keys[i], 0, acquired.slots[i])) << i;
    }
    if (!acquired.reply.token.is_zero()) world_.Release(session, acquired.reply.token);
    world_.listener.completions.clear();
    return good;
  }
  std::byte* BytesOf(const BlockKey& key) {
    for (size_t i = 0; i < world_.rows().size(); ++i) {
      const SlotRow& row = world_.rows()[i];
      if (row.state == SlotState::kFree || row.block.key != key) continue;
      const uint64_t rows_per_segment = kSegmentBytesMin / kArenaPageBytes;
      const uint64_t slot = i % rows_per_segment;
      return world_.arenas[0]->SegmentBase(static_cast<uint32_t>(i / rows_per_segment)) +
             slot * kSlotBytes;
    }
    return nullptr;
  }

  StoreWorld world_;
  SessionId writer_ = 0;
  uint32_t group_ = 0;
};

TEST_F(StoreAdopt, SealedBlocksAreHitAgain) {
  const auto keys = StoreWorld::Keys(12);
  ASSERT_EQ(Save(writer_, keys), 12u);
  const AdoptSummary summary = world_.RestartWarm();
  EXPECT_EQ(summary.blocks, 12u);
  EXPECT_EQ(summary.slots_dropped, 0u);
  EXPECT_EQ(Load(Arrive(), keys), 12u);
  EXPECT_EQ(world_.Stats().blocks_corrupt, 0u);
}

// Less memory than the predecessor had: what is too much leaves once it is known what is in it.
TEST_F(StoreAdopt, ASuccessorThatMayHaveLessGivesBackWhatItHasAdopted) {
  const auto keys = StoreWorld::Keys(28);
  ASSERT_EQ(Save(writer_, keys), 28u);
  world_.options().segments_total = 2;
  EXPECT_EQ(world_.RestartWarm().blocks, 28u);
  for (int i = 0; i < 200; ++i) world_.Advance(10'000);
  world_.Check();
  EXPECT_EQ(world_.Stats().segments_populated, 2u);
  const SessionId reader = Arrive();
  EXPECT_LE(Load(reader, keys), 16u);
  // Its segments serve as any: each slot is taken and freed.
  const auto others = StoreWorld::Keys(16, 9);
  EXPECT_EQ(Save(reader, others), 16u);
  EXPECT_EQ(Load(reader, others), 16u);
  world_.options().segments_total = 4;
  EXPECT_EQ(world_.RestartWarm().blocks, 16u);
  EXPECT_EQ(Save(Arrive(), keys), 28u);
  world_.Check();
}

TEST_F(StoreAdopt, BytesAreComingUntilTheyAreVerified) {
  const auto keys = StoreWorld::Keys(3);
  Save(writer_, keys);
  world_.RestartWarm();
  const SessionId reader = world_.Open();
  world_.holds_checksums = true;
  group_ = world_.OpenSimple(reader);
  const AcquireResult acquired = world_.Acquire(reader, group_, keys);
  ASSERT_EQ(acquired.spans.size(), 1u);
  EXPECT_EQ(acquired.spans[0].state, SpanState::kComing);
  EXPECT_EQ(acquired.spans[0].tier, TierKind::kDram);
  EXPECT_THAT(world_.listener.completions, IsEmpty());
  world_.holds_checksums = false;
  world_.Run();
  EXPECT_FALSE(world_.listener.completions.empty());
  EXPECT_EQ(world_.Acquire(reader, group_, keys).spans[0].state, SpanState::kReady);
}

TEST_F(StoreAdopt, EachBlockIsVerifiedOnceWhoeverAsks) {
  const auto keys = StoreWorld::Keys(8);
  Save(writer_, keys);
  world_.RestartWarm();
  world_.holds_checksums = true;
  const SessionId a = Arrive();
  const SessionId b = Arrive(/*uid=*/2);
  world_.Acquire(a, group_, keys);
  world_.Acquire(b, group_, keys);
  world_.Run();
  EXPECT_EQ(world_.offload.job_count(), 8u);
  world_.holds_checksums = false;
  world_.Run();
  EXPECT_EQ(Load(b, keys), 8u);
}

TEST_F(StoreAdopt, BlocksAreVerifiedInTheBackground) {
  const auto keys = StoreWorld::Keys(20);
  Save(writer_, keys);
  world_.RestartWarm();
  world_.Run();
  const SessionId reader = Arrive();
  EXPECT_EQ(world_.Acquire(reader, group_, keys).spans[0].state, SpanState::kReady);
}

TEST_F(StoreAdopt, CorruptedBlockIsAMissAndOthersAreNot) {
  const auto keys = StoreWorld::Keys(6);
  const auto others = StoreWorld::Keys(4, /*chain=*/2);
  Save(writer_, keys);
  Save(writer_, others);
  world_.Kill();
  BytesOf(keys[3])[kSlotBytes / 2] ^= std::byte{1};
  world_.MakeStore(StoreWorld::Dram::kKept);
  world_.Restore();
  EXPECT_EQ(world_.store->restoration().AdoptSlots(0, {}).blocks, 10u);
  const SessionId reader = Arrive();
  EXPECT_EQ(Load(reader, keys), 3u);
  EXPECT_EQ(Load(reader, others), 4u);
  EXPECT_EQ(world_.Stats().blocks_corrupt, 1u);
  // The key is free for another commit.
  EXPECT_EQ(Save(reader, keys), 1u);
  EXPECT_EQ(Load(reader, keys), 6u);
}

TEST_F(StoreAdopt, BlockWithoutAChecksumIsDropped) {
  world_.holds_checksums = true;
  const auto keys = StoreWorld::Keys(2);
  const ReserveResult reserved = world_.Reserve(writer_, group_, keys);
  world_.CommitAll(writer_, group_, keys, reserved, StoreWorld::Checksums::kDaemon,
                   protocol::kCommitRelease);
  world_.holds_checksums = false;
  const AdoptSummary summary = world_.RestartWarm();
  EXPECT_EQ(summary.blocks, 0u);
  EXPECT_EQ(summary.slots_dropped, 2u);
  world_.Run();
  EXPECT_EQ(world_.Stats().slot_bytes_used, 0u);
}

TEST_F(StoreAdopt, FencesStandUntilEverySessionHasEnded) {
  const auto sealed = StoreWorld::Keys(2);
  const auto reserved = StoreWorld::Keys(3, /*chain=*/2);
  Save(writer_, sealed);
  world_.Reserve(writer_, group_, reserved);
  const SessionId other = Arrive();
  const AdoptSummary summary = world_.RestartWarm({writer_, other});
  EXPECT_EQ(summary.slots_fenced, 3u);
  EXPECT_EQ(world_.Stats().inherited_bytes, 3 * kSlotBytes);
  world_.Advance(1'000'000'000);  // no timer lets them fall
  EXPECT_EQ(world_.Stats().inherited_bytes, 3 * kSlotBytes);
  world_.store->restoration().PredecessorSessionEnded(0, writer_);
  world_.Run();
  EXPECT_EQ(world_.Stats().inherited_bytes, 3 * kSlotBytes);
  world_.store->restoration().PredecessorSessionEnded(0, other);
  world_.Run();
  EXPECT_EQ(world_.Stats().inherited_bytes, 0u);
  EXPECT_EQ(world_.Stats().slot_bytes_used, 2 * kSlotBytes);
  // The keys are free.
  EXPECT_EQ(Save(Arrive(), reserved), 3u);
}

// A reader of the predecessor may still copy from a block that nobody holds here.
TEST_F(StoreAdopt, SealedSlotIsNotReusedWhileAPredecessorsReaderMayReadIt) {
  const auto keys = StoreWorld::Keys(32);  // all of DRAM
  ASSERT_EQ(Save(writer_, keys), 32u);
  world_.RestartWarm({writer_});
  world_.Run();
  const SessionId session = Arrive();
  const auto more = StoreWorld::Keys(2, /*chain=*/2);
  EXPECT_EQ(Save(session, more), 0u);
  EXPECT_EQ(Load(session, keys), 32u);
  world_.store->restoration().PredecessorSessionEnded(0, writer_);
  world_.Run();
  EXPECT_EQ(Save(session, more), 2u);
}

TEST_F(StoreAdopt, ResetBlocksKeepTheirSlotsFenced) {
  const auto keys = StoreWorld::Keys(4);
  Save(writer_, keys);
  world_.RestartWarm({writer_});
  world_.Run();
  const SessionId session = Arrive();
  world_.Reset(session, group_);
  world_.Run();
  EXPECT_EQ(Load(session, keys), 0u);
  EXPECT_EQ(world_.Stats().inherited_bytes, 4 * kSlotBytes);
  world_.store->restoration().PredecessorSessionEnded(0, writer_);
  world_.Run();
  EXPECT_EQ(world_.Stats().slot_bytes_used, 0u);
}

TEST_F(StoreAdopt, BlocksOfAGroupNobodyOpenedWaitForIt) {
  const auto keys = StoreWorld::Keys(10);
  Save(writer_, keys);
  world_.group_files.kept.clear();
  const AdoptSummary summary = world_.RestartWarm();
  EXPECT_EQ(summary.blocks, 0u);
  EXPECT_EQ(summary.slots_parked, 10u);
  // Found as soon as the group is there, before anything else is run.
  const SessionId session = world_.Open();
  OpenedGroup group;
  const Error opened =
      world_.store->sessions().OpenGroup(session, TestGroup("simple", {TestSpace(0)}), &group);
  ASSERT_TRUE(opened.ok()) << opened.sentence();
  EXPECT_EQ(world_.MatchCount(session, group.group_index, keys), 10u);
  group_ = world_.OpenSimple(session);
  EXPECT_EQ(Load(session, keys), 10u);
}

TEST_F(StoreAdopt, ParkedBlocksMakeRoom) {
  Save(writer_, StoreWorld::Keys(32));
  world_.group_files.kept.clear();
  EXPECT_EQ(world_.RestartWarm().slots_parked, 32u);
  const SessionId session = world_.Open();
  group_ = world_.OpenGroup(session, TestGroup("other", {TestSpace(1)}));
  Save(session, StoreWorld::Keys(32, 5));  // tells that room is short
  world_.Run();
  EXPECT_EQ(Save(session, StoreWorld::Keys(32, 6)), 32u);
}

// ---- what is parked, and erased before its group comes ----

class StoreAdoptErased : public StoreAdopt {
 protected:
  static constexpr uint32_t kCount = 10;

  // The blocks of two chains are parked; the answer is a session that has another group open.
  SessionId ParkAndOpenOther() {
    Save(writer_, keys_);
    Save(writer_, others_);
    world_.group_files.kept.clear();
    EXPECT_EQ(world_.RestartWarm().slots_parked, 2 * kCount);
    const SessionId session = world_.Open();
    other_group_ = world_.OpenGroup(session, TestGroup("other", {TestSpace(1)}));
    return session;
  }
  // How many of the two chains are found once the group is opened; of this process, and of one that
  // takes over from it.
  void ExpectFound(uint32_t of_keys, uint32_t of_others) {
    world_.Check();
    for (const bool is_successor : {false, true}) {
      if (is_successor) world_.RestartWarm();
      const SessionId session = Arrive();
      EXPECT_EQ(world_.MatchCount(session, group_, keys_), of_keys) << is_successor;
      EXPECT_EQ(world_.MatchCount(session, group_, others_), of_others) << is_successor;
      EXPECT_EQ(Load(session, keys_), of_keys);
      EXPECT_EQ(Load(session, others_), of_others);
    }
  }
  KeysQuery All(SessionId session, const std::vector<BlockKey>& keys, uint32_t flags) {
    KeysQuery query = world_.Query(session, kAllGroups, keys);
    query.flags = flags;
    return query;
  }
  StatusCode EvictWhere(SessionId session, const protocol::EvictWhereRequest& request) {
    EvictWhereOperation evict = world_.store->operators().EvictWhere(session, request, &evicted_);
    Result<Progress> progress = evict.Step();
    while (progress.ok() && *progress != Progress::kDone) progress = evict.Step();
    return progress.status().code();
  }

  const std::vector<BlockKey> keys_ = StoreWorld::Keys(kCount);
  const std::vector<BlockKey> others_ = StoreWorld::Keys(kCount, /*chain=*/2);
  uint32_t other_group_ = 0;
  protocol::EvictReply evicted_;
};

TEST_F(StoreAdoptErased, EverythingIsEvicted) {
  const SessionId session = ParkAndOpenOther();
  const auto reply = world_.Evict(All(session, {}, protocol::kEvictSubtree));
  EXPECT_EQ(reply.block_count, 2 * kCount);
  EXPECT_EQ(reply.byte_count, 2 * kCount * kSlotBytes);
  ExpectFound(0, 0);
}

TEST_F(StoreAdoptErased, ASuccessorThatComesAtOnceHasThemNeither) {
  world_.Evict(All(ParkAndOpenOther(), keys_, 0));
  EXPECT_EQ(world_.RestartWarm().slots_parked, kCount);
  ExpectFound(0, kCount);
}

TEST_F(StoreAdoptErased, ADryRunLeavesThem) {
  const SessionId session = ParkAndOpenOther();
  world_.Evict(All(session, {}, protocol::kEvictSubtree | protocol::kEvictDryRun));
  world_.Evict(All(session, keys_, protocol::kEvictDryRun));
  EXPECT_EQ(EvictWhere(session, {.flags = protocol::kEvictWhereDryRun}), StatusCode::kOk);
  ExpectFound(kCount, kCount);
}

TEST_F(StoreAdoptErased, ByTheirKeys) {
  const SessionId session = ParkAndOpenOther();
  const std::vector<BlockKey> tail(keys_.begin() + 6, keys_.end());
  EXPECT_EQ(world_.Evict(All(session, tail, 0)).block_count, 4u);
  EXPECT_EQ(world_.Evict(All(session, tail, 0)).block_count, 0u);
  ExpectFound(6, kCount);
}

// Nobody knows of what is parked what hangs below what, so that other chains lose as much.
TEST_F(StoreAdoptErased, WithWhatMayContinueThem) {
  const SessionId session = ParkAndOpenOther();
  EXPECT_EQ(world_.Evict(All(session, {keys_[3]}, protocol::kEvictSubtree)).block_count, 13u);
  ExpectFound(3, 4);
}

// How deep the key would lie nobody knows: all but first blocks may continue it.
TEST_F(StoreAdoptErased, WithWhatMayContinueAKeyThatIsNowhere) {
  const SessionId session = ParkAndOpenOther();
  const std::vector<BlockKey> nowhere = StoreWorld::Keys(1, /*chain=*/9);
  EXPECT_EQ(world_.Evict(All(session, nowhere, 0)).block_count, 0u);
  EXPECT_EQ(world_.Evict(All(session, nowhere, protocol::kEvictSubtree)).block_count,
            2 * (kCount - 1));
  ExpectFound(1, 1);
}

TEST_F(StoreAdoptErased, WithWhatMayContinueAKeyThatWasTakenAlone) {
  const SessionId session = ParkAndOpenOther();
  EXPECT_EQ(world_.Evict(All(session, {keys_[3]}, 0)).block_count, 1u);
  world_.Evict(All(session, {keys_[3]}, protocol::kEvictSubtree));
  ExpectFound(1, 1);
}

TEST_F(StoreAdoptErased, OfAnotherGroupTheyStay) {
  const SessionId session = ParkAndOpenOther();
  world_.Reset(session, other_group_);
  KeysQuery query = world_.Query(session, other_group_, keys_);
  EXPECT_EQ(world_.Evict(query).block_count, 0u);
  query.keys = {};
  query.flags = protocol::kEvictSubtree;
  EXPECT_EQ(world_.Evict(query).block_count, 0u);
  EXPECT_EQ(EvictWhere(session, {.group = TestGroup("other", {TestSpace(1)}).Id()}),
            StatusCode::kOk);
  ExpectFound(kCount, kCount);
}

TEST_F(StoreAdoptErased, ByAResetOfAllGroups) {
  const SessionId session = ParkAndOpenOther();
  world_.Reset(session, kAllGroups);
  ExpectFound(0, 0);
}

TEST_F(StoreAdoptErased, ByFiltersThatCoverThem) {
  const SessionId session = ParkAndOpenOther();
  EXPECT_EQ(EvictWhere(session, {.idle_ms_min = 3'600'000}), StatusCode::kOk);
  EXPECT_EQ(EvictWhere(session, {.tier = static_cast<uint8_t>(TierKind::kNvme)}),
            StatusCode::kUnsupported);
  EXPECT_EQ(evicted_.block_count, 0u);
  world_.Advance(2'000'000);
  EXPECT_EQ(EvictWhere(session, {.idle_ms_min = 1'000}), StatusCode::kOk);
  EXPECT_EQ(evicted_.block_count, 2 * kCount);
  ExpectFound(0, 0);
}

// The group is open, and turns adopt the rest of it: no turn brings back what was erased meanwhile.
TEST_F(StoreAdopt, WhatIsErasedWhileAGroupIsAdoptedInTurnsDoesNotComeBehindIt) {
  world_.options().segments_max = 160;
  world_.Restart();
  SessionId session = Arrive();
  std::vector<std::vector<BlockKey>> chains;
  for (uint64_t chain = 1; chain <= 10; ++chain) {
    chains.push_back(StoreWorld::Keys(120, chain));
    ASSERT_EQ(Save(session, chains.back()), 120u);
  }
  world_.group_files.kept.clear();
  ASSERT_EQ(world_.RestartWarm().slots_parked, 1200u);
  session = world_.Open();
  OpenedGroup group;
  ASSERT_TRUE(world_.store->sessions()
                  .OpenGroup(session, TestGroup("simple", {TestSpace(0)}), &group)
                  .ok());
  ASSERT_EQ(world_.Stats().blocks_adopted, 1024u);
  group_ = group.group_index;
  world_.Reset(session, group_);
  world_.Advance(1'000'000);
  EXPECT_EQ(world_.Stats().blocks_adopted, 1024u);
  for (const auto& chain : chains) EXPECT_EQ(world_.MatchCount(session, group_, chain), 0u);
}

TEST_F(StoreAdopt, SecondCrashLosesNothing) {
  const auto keys = StoreWorld::Keys(9);
  Save(writer_, keys);
  world_.holds_checksums = true;
  world_.RestartWarm();
  world_.Run();  // verifications under way
  EXPECT_EQ(world_.RestartWarm().blocks, 9u);
  world_.holds_checksums = false;
  EXPECT_EQ(Load(Arrive(), keys), 9u);
}

TEST_F(StoreAdopt, HintsOutliveTheProcess) {
  const auto keys = StoreWorld::Keys(2);
  KeysQuery query = world_.Query(writer_, group_, keys);
  query.hints.ttl_s = 100;
  query.hints.priority = 77;
  const ReserveResult reserved = world_.Reserve(query);
  world_.CommitAll(writer_, group_, keys, reserved, StoreWorld::Checksums::kClient,
                   protocol::kCommitRelease);
  world_.RestartWarm();
  const SessionId session = Arrive();
  std::vector<protocol::QueriedBlock> blocks;
  ASSERT_TRUE(world_.store->operators().Query(world_.Query(session, group_, keys), &blocks).ok());
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[1].priority, 77);
  EXPECT_EQ(Load(session, keys), 2u);
  world_.Advance(101'000'000);
  EXPECT_EQ(Load(session, keys), 0u);
}

class StoreAdoptTiers : public StoreAdopt {
 protected:
  StoreAdoptTiers() : StoreAdopt({.segments_max = 4, .lower_tier_count = 1}) {}
};

TEST_F(StoreAdoptTiers, CopyBelowAndCopyInDramAreOneBlock) {
  const auto keys = StoreWorld::Keys(5);
  Save(writer_, keys);
  world_.Advance(1'000'000);
  ASSERT_EQ(world_.Stats().lower_tiers[0].block_count, 5u);
  world_.RestartWarm();
  EXPECT_EQ(world_.Stats().block_count, 5u);
  EXPECT_EQ(world_.Stats().lower_tiers[0].block_count, 5u);
  EXPECT_EQ(world_.Stats().slot_bytes_used, 5 * kSlotBytes);
  EXPECT_EQ(Load(Arrive(), keys), 5u);
}

TEST_F(StoreAdoptTiers, CorruptedDramCopyFallsBackToTheOneBelow) {
  const auto keys = StoreWorld::Keys(3);
  Save(writer_, keys);
  world_.Advance(1'000'000);
  world_.Kill();
  BytesOf(keys[1])[5] ^= std::byte{1};
  world_.MakeStore(StoreWorld::Dram::kKept);
  world_.Restore();
  world_.store->restoration().AdoptSlots(0, {});
  world_.Run();
  EXPECT_EQ(world_.Stats().blocks_corrupt, 1u);
  EXPECT_EQ(Load(Arrive(), keys), 3u);
}

class StoreAdoptGarbled : public StoreAdopt, public testing::WithParamInterface<uint64_t> {
 protected:
  uint64_t Draw(uint64_t bound) { return random_.Next() % bound; }
  // One row says something else now, and mostly still matches its check.
  void Garble() {
    const auto rows = world_.rows();
    size_t index = Draw(rows.size());
    for (size_t tries = 0; rows[index].state == SlotState::kFree && tries < 5'000; ++tries) {
      index = (index + 1) % rows.size();
    }
    SlotRow& row = rows[index];
    SlotIdentity& block = row.block;
    switch (Draw(14)) {
      case 0:
        row.state = static_cast<SlotState>(Draw(7));
        break;
      case 1:
        row.slot_pages = static_cast<uint32_t>(random_.Next() >> Draw(64));
        break;
      case 2:
        row.extent_chunks = static_cast<uint16_t>(random_.Next());
        break;
      case 3:
        row.checksum.low ^= uint64_t{1} << Draw(64);
        break;
      case 4:
        block.member = static_cast<uint8_t>(random_.Next());
        break;
      case 5:
        block.position = static_cast<uint32_t>(random_.Next() >> Draw(64));
        break;
      case 6:
        block.parent = StoreWorld::Keys(12)[Draw(12)];  // perhaps its child, or itself
        break;
      case 7:
        block.key = StoreWorld::Keys(12)[Draw(12)];
        break;
      case 8:
        block.commit_id = Draw(2) == 0 ? 0 : random_.Next();
        break;
      case 9:
        block.expires_at_s = random_.Next() >> Draw(64);
        break;
      case 10:
        block.flags = static_cast<uint8_t>(random_.Next());
        block.priority = static_cast<uint8_t>(random_.Next());
        break;
      case 11:
        block = rows[Draw(rows.size())].block;
        break;
      case 12:
        row = rows[Draw(rows.size())];
        break;
      default:
        for (size_t i = 0; i < sizeof(row); ++i) {
          reinterpret_cast<unsigned char*>(&row)[i] = static_cast<unsigned char>(random_.Next());
        }
    }
    if (Draw(8) != 0) row.check = RowCheck(row, StoreWorld::TableSeed(0), index);
  }

  sim::SeededRandom random_{GetParam()};
};

// Nothing in the table is believed: what it says wrong costs blocks, never truth.
// PROMISE: T31 a slot table that says anything
TEST_P(StoreAdoptGarbled, WhatIsServedIsRightWhateverTheTableSays) {
  for (int round = 0; round < 40; ++round) {
    const auto keys = StoreWorld::Keys(12);
    const auto others = StoreWorld::Keys(12, /*chain=*/2);
    const SessionId session = Arrive();
    Save(session, keys);
    Save(session, others);
    world_.Reserve(session, group_, StoreWorld::Keys(2, /*chain=*/3));
    world_.Kill();
    for (uint64_t i = 0; i < 1 + Draw(6); ++i) Garble();
    world_.MakeStore(StoreWorld::Dram::kKept);
    if (Draw(2) == 0) world_.group_files.kept.clear();
    world_.Restore();
    world_.store->restoration().AdoptSlots(0, {});
    const SessionId reader = Arrive();
    Load(reader, keys);  // judges every byte
    Load(reader, others);
    Save(reader, StoreWorld::Keys(4, /*chain=*/100 + round));
    Load(reader, StoreWorld::Keys(4, /*chain=*/100 + round));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreAdoptGarbled, testing::Range<uint64_t>(1, 9));

TEST_F(StoreAdopt, MembersOfAGroupAreAdoptedTogether) {
  const SpaceGroupSpec spec = TestGroup("pair", {TestSpace(0), TestSpace(1)});
  group_ = world_.OpenGroup(writer_, spec);
  const auto keys = StoreWorld::Keys(3);
  ASSERT_EQ(Save(writer_, keys), 3u);
  world_.Kill();
  // A kill between the rows of one block.
  uint32_t torn = 0;
  for (SlotRow& row : world_.rows()) {
    if (row.state == SlotState::kSealed && row.block.key == keys[2] && row.block.member == 1) {
      row.state = SlotState::kReserved;
      ++torn;
    }
  }
  ASSERT_EQ(torn, 1u);
  world_.MakeStore(StoreWorld::Dram::kKept);
  world_.Restore();
  const AdoptSummary summary = world_.store->restoration().AdoptSlots(0, {});
  EXPECT_EQ(summary.blocks, 2u);
  EXPECT_EQ(summary.slots_dropped, 1u);
  world_.Run();
  const SessionId reader = world_.Open();
  group_ = world_.OpenGroup(reader, spec);
  EXPECT_EQ(world_.MatchCount(reader, group_, keys), 2u);
}

}  // namespace
}  // namespace terrace
