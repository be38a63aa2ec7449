#include "tiers/nvme/unsynced_entries.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

using Slots = std::vector<uint32_t>;

class UnsyncedEntriesTest : public testing::Test {
 protected:
  UnsyncedEntriesTest() { slots_.TakeShape(8, 4096); }
  void Add(const Slots& slots) {
    for (const uint32_t slot : slots) entries_.Add(slots_, slot);
  }
  Slots Covered() const { return {entries_.covered().begin(), entries_.covered().end()}; }

  SlotTotals totals_;
  SlabSlots slots_{&totals_};
  UnsyncedEntries entries_;
};

TEST_F(UnsyncedEntriesTest, ASyncCoversWhatWasWrittenBeforeItBegan) {
  Add({3, 1, 3});
  entries_.Begin(slots_, 100, true);
  EXPECT_FALSE(entries_.is_sync_due());
  Add({5, 1});
  EXPECT_EQ(Covered(), (Slots{3, 1}));
  EXPECT_TRUE(slots_[1].has(kEntryUnsynced)) << "written again behind its beginning";
  EXPECT_TRUE(slots_[1].has(kEntrySyncing));
  entries_.End(slots_);
  EXPECT_FALSE(slots_[3].has(kEntrySyncing | kEntryUnsynced));
  EXPECT_TRUE(slots_[1].has(kEntryUnsynced));
  EXPECT_TRUE(entries_.is_sync_due());
  EXPECT_EQ(entries_.begun_us(), 100u);
}

TEST_F(UnsyncedEntriesTest, SomethingElseThanAnEntryWantsASyncToo) {
  EXPECT_FALSE(entries_.is_sync_due());
  entries_.Require();
  EXPECT_TRUE(entries_.is_sync_due());
  entries_.Begin(slots_, 1, true);
  EXPECT_FALSE(entries_.is_sync_due());
}

TEST_F(UnsyncedEntriesTest, WhatASyncThatNeverBeganWasToCoverIsUnsyncedStill) {
  Add({2});
  entries_.Begin(slots_, 1, true);
  Add({2, 4});
  entries_.End(slots_);
  entries_.TakeBack(slots_);
  entries_.ForgetCovered();
  entries_.Begin(slots_, 2, true);
  EXPECT_EQ(Covered(), (Slots{2, 4})) << "each once";
}

TEST_F(UnsyncedEntriesTest, AFailedSyncPutsInDoubtWhatItCoversAndWhatCameSince) {
  Add({2});
  entries_.Begin(slots_, 1, true);
  Add({6});
  EXPECT_EQ(entries_.TakeAllInDoubt(slots_), (Slots{2, 6}));
  EXPECT_FALSE(entries_.is_whole());
  EXPECT_FALSE(slots_[6].has(kEntryUnsynced));
  entries_.End(slots_);
  entries_.ForgetCovered();
  EXPECT_FALSE(entries_.is_sync_due());
}

TEST_F(UnsyncedEntriesTest, OneSyncAtATime) {
  entries_.Begin(slots_, 1, false);
  EXPECT_DEATH(entries_.Begin(slots_, 2, false), "one request at a time");
  EXPECT_DEATH(entries_.Clear(), "keeps its shape");
}

}  // namespace
}  // namespace terrace
