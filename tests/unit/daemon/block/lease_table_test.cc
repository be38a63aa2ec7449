// The rows of leases change only through the table.
#include "daemon/block/lease_table.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr LeaseToken kToken{1, 2};

LeaseId OpenLease(LeaseTable& table, LeaseKind kind = LeaseKind::kRead) {
  return table.Open({.kind = kind, .token = kToken, .owner = 3, .created_us = 5});
}

TEST(LeaseTable, IsBuiltThenLivesThenEnds) {
  LeaseTable table;
  const LeaseId id = OpenLease(table);
  EXPECT_EQ(table.at(id).phase, LeasePhase::kBuilding);
  EXPECT_EQ(table.at(id).owner, 3u);
  table.Join(id, 3);
  table.GoLive(id);
  EXPECT_EQ(table.Find(kToken), id);
  table.RemoveJoiner(id, 3);
  table.BeginEnd(id);
  EXPECT_EQ(table.Find(kToken), kLeaseNone) << "it names nothing any more";
  EXPECT_EQ(table.count(), 1u);
  const uint32_t stamp = table.at(id).stamp;
  table.Close(id);
  EXPECT_EQ(table.count(), 0u);
  EXPECT_EQ(OpenLease(table), id);
  EXPECT_EQ(table.at(id).stamp, stamp + 1) << "another use of the id";
}

TEST(LeaseTable, ARevocationFencesEachEntryOnce) {
  LeaseTable table;
  const LeaseId id = OpenLease(table);
  table.AppendPath(id, {.first = 10, .block_count = 2});
  table.Take(id, 1);
  table.LeaveBehind(id, {.block = 7, .flags = kEntryByParts});
  EXPECT_TRUE(table.Flag(id, 0, kEntryFenced));
  EXPECT_FALSE(table.Flag(id, 0, kEntryFenced));
  EXPECT_FALSE(table.at(id).is_to_revoke());
  EXPECT_TRUE(table.Revoke(id));
  EXPECT_FALSE(table.Revoke(id));
  const LeaseTable::Revoked behind = table.RevokeNext(id);
  EXPECT_EQ(behind.entry.block, 7u);
  EXPECT_TRUE(behind.is_fenced_now);
  EXPECT_FALSE(table.RevokeNext(id).is_fenced_now) << "fenced before";
  EXPECT_FALSE(table.RevokeNext(id).is_fenced_now) << "no block";
  EXPECT_FALSE(table.at(id).is_to_revoke());
}

TEST(LeaseTable, PathsAreTakenFromTheEndAsFarAsIdsFollowEachOther) {
  LeaseTable table;
  const LeaseId id = OpenLease(table);
  table.Append(id, {.block = 3});
  table.AppendPath(id, {.first = 10, .block_count = 4});
  EXPECT_EQ(table.at(id).charged_count, 5u);
  uint32_t budget = 3;
  EXPECT_EQ(table.PopLast(id, &budget).path, (BlockRange{.first = 11, .block_count = 3}));
  EXPECT_EQ(budget, 0u);
  budget = 10;
  EXPECT_EQ(table.PopLast(id, &budget).path, (BlockRange{.first = 10, .block_count = 1}));
  EXPECT_EQ(table.PopLast(id, &budget).path, (BlockRange{.first = 3, .block_count = 1}));
  EXPECT_TRUE(table.at(id).entries.empty());
  EXPECT_EQ(table.at(id).charged_count, 5u) << "it is charged for what it ever had";
}

TEST(LeaseTable, ATailThatIsCutOffHasNotBeenRevoked) {
  LeaseTable table;
  const LeaseId id = OpenLease(table);
  table.AppendPath(id, {.first = 10, .block_count = 3});
  EXPECT_TRUE(table.Revoke(id));
  for (int i = 0; i < 3; ++i) table.RevokeNext(id);
  CutTail tail = table.Cut(id, 1);
  EXPECT_EQ(tail.entries.size(), 2u);
  EXPECT_EQ(table.at(id).revoked_count, 1u);
  EXPECT_TRUE(table.Cut(id, 1).entries.empty());
  uint32_t budget = 5;
  EXPECT_EQ(tail.PopLast(&budget).last.block, 12u);
  EXPECT_EQ(budget, 4u) << "fenced entries go one by one";
}

TEST(LeaseTable, AReserveMarksTheEntriesOfItsLease) {
  LeaseTable table;
  const LeaseId id = table.Open({.kind = LeaseKind::kWrite, .token = kToken, .part_words = 2});
  table.AddKey(id);
  table.Append(id, {.block = 4});
  table.AddKey(id);
  EXPECT_EQ(table.at(id).marks.key_count(), 2u);
  EXPECT_EQ(table.at(id).marks.EntryOf(0), kEntryNone) << "it was not reserved";
  ASSERT_EQ(table.at(id).marks.EntryOf(1), 0u);
  EXPECT_TRUE(table.marks(id).MarkAbsent(0, 5));
  EXPECT_EQ(table.at(id).marks.absent_mask(0), uint64_t{1} << 5);
  table.Take(id, 0);
  EXPECT_EQ(table.at(id).marks.absent_mask(0), uint64_t{1} << 5) << "what was said stays said";
}

}  // namespace
}  // namespace terrace
