#include "tiers/nvme/erasure_log.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

class ErasureLogTest : public testing::Test {
 protected:
  ErasureLogTest() { slab_.slots.TakeShape(8, 4096); }
  uint64_t open() const { return log_.progress().begun - log_.progress().ended; }

  SlotTotals totals_;
  NvmeSlab slab_{3, 0, 0, &totals_};
  ErasureLog log_;
};

TEST_F(ErasureLogTest, EndsInTheOrderTheyBegan) {
  log_.Begin(slab_, 1);
  log_.Begin(slab_, 2);
  EXPECT_EQ(log_.progress().begun, 2u);
  log_.EndIfDurable(slab_, 2);
  EXPECT_EQ(log_.progress().ended, 0u) << "the first goes on";
  log_.EndIfDurable(slab_, 1);
  EXPECT_EQ(log_.progress().ended, 2u);
}

TEST_F(ErasureLogTest, ASlotFreedTwiceHasOneErasureUntilThatEnds) {
  log_.Begin(slab_, 1);
  log_.Begin(slab_, 1);
  EXPECT_EQ(log_.progress().begun, 1u);
  log_.EndIfDurable(slab_, 1);
  log_.Begin(slab_, 1);
  EXPECT_EQ(log_.progress().begun, 2u);
}

TEST_F(ErasureLogTest, HasNotEndedWhileTableCatalogOrDriveMaySayOtherwise) {
  for (const uint8_t flag :
       {kEntryDirty, kEntryInFlight, kEntryToCatalog, kEntryUnsynced, kEntrySyncing}) {
    log_.Begin(slab_, 1);
    slab_.slots.SetFlags(1, flag, 0);
    log_.EndIfDurable(slab_, 1);
    EXPECT_EQ(open(), 1u) << "flag " << int{flag};
    slab_.slots.SetFlags(1, 0, flag);
    log_.EndIfDurable(slab_, 1);
    EXPECT_EQ(open(), 0u) << "flag " << int{flag};
  }
}

TEST_F(ErasureLogTest, WhatTheLastDaemonErasedIsOneErasureASlab) {
  log_.BeginInherited(slab_);
  log_.BeginInherited(slab_);
  EXPECT_TRUE(log_.IsInherited(slab_));
  EXPECT_EQ(open(), 1u);
  log_.Begin(slab_, 1);
  log_.EndInherited(slab_);
  log_.EndInherited(slab_);
  EXPECT_FALSE(log_.IsInherited(slab_));
  EXPECT_EQ(open(), 1u);
}

TEST_F(ErasureLogTest, ASlotWithoutAnErasureEndsNone) {
  log_.EndIfDurable(slab_, 4);
  EXPECT_EQ(open(), 0u);
}

}  // namespace
}  // namespace terrace
