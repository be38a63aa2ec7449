// What of a Reserve is committed, and that it is said once.
#include "daemon/block/commit_marks.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(CommitMarks, KeysThatWereNotReservedHaveNoEntry) {
  CommitMarks marks(1);
  for (const size_t entry_count : {0, 1, 1, 2}) marks.AddKey(entry_count);
  EXPECT_EQ(marks.key_count(), 4u);
  EXPECT_EQ(marks.EntryOf(0), kEntryNone);
  EXPECT_EQ(marks.EntryOf(1), 0u);
  EXPECT_EQ(marks.EntryOf(2), kEntryNone);
  EXPECT_EQ(marks.EntryOf(3), 1u);
  EXPECT_EQ(marks.EntryOf(4), kEntryNone);
}

TEST(CommitMarks, PartsAreCommittedOnce) {
  CommitMarks marks(2);
  marks.AddKey(1);
  EXPECT_TRUE(marks.MarkParts(0, {.first = 60, .count = 8}));
  EXPECT_FALSE(marks.MarkParts(0, {.first = 67, .count = 2})) << "one of them twice";
  EXPECT_EQ(marks.PartBitsOf(0)[0], uint64_t{0xF} << 60);
  EXPECT_EQ(marks.PartBitsOf(0)[1], 0xFu) << "and nothing of that was marked";
  EXPECT_TRUE(marks.MarkAbsent(0, 5));
  EXPECT_FALSE(marks.MarkAbsent(0, 5));
  EXPECT_EQ(marks.absent_mask(0), uint64_t{1} << 5);
}

TEST(CommitMarks, EntriesHaveRowsOfTheirOwn) {
  CommitMarks marks(2);
  marks.MakeRoom(2);
  marks.AddKey(1);
  marks.AddKey(2);
  EXPECT_TRUE(marks.MarkParts(1, {.first = 0, .count = 128}));
  marks.EndKeys();
  EXPECT_EQ(marks.PartBitsOf(0)[1], 0u);
  EXPECT_EQ(marks.PartBitsOf(1)[1], ~uint64_t{0});
  EXPECT_EQ(marks.absent_mask(1), 0u);
}

}  // namespace
}  // namespace terrace
