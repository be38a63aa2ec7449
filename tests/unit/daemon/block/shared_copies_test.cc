// What the shared tier has, as far as is known: for a time, and until something says otherwise.
#include "daemon/block/shared_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace terrace {
namespace {

constexpr uint32_t kCopiesMax = 64;

SharedCopies::Name NameOf(uint64_t group, uint64_t key) {
  SharedCopies::Name name;
  name.group.low = group;
  name.key.low = key;
  return name;
}

// Hears which are there.
class Heard final : public SharedCopyObserver {
 public:
  explicit Heard(SharedCopies& copies) : copies_(copies) { copies.SetObserver(this); }
  void OnSharedCopy(uint32_t copy) override {
    ASSERT_NE(copies_.at(copy), nullptr);
    const uint64_t hash = copies_.at(copy)->event_hash;
    EXPECT_TRUE(std::ranges::none_of(hashes, [&](const auto& one) { return one.second == hash; }))
        << "one that is gone is told to be gone before it is told to be there";
    EXPECT_TRUE(hashes.emplace(copy, hash).second);
  }
  void OnSharedCopyGone(uint32_t copy) override {
    EXPECT_EQ(hashes.at(copy), copies_.last(copy).event_hash);
    hashes.erase(copy);
  }
  std::map<uint32_t, uint64_t> hashes;  // by number

 private:
  SharedCopies& copies_;
};

class SharedCopiesTest : public ::testing::Test {
 protected:
  void Note(uint64_t group, uint64_t key, uint64_t until_us = kNever) {
    copies.Note(NameOf(group, key), {.event_hash = group << 32 | key}, until_us);
  }
  bool Has(uint64_t group, uint64_t key) const { return copies.Has(NameOf(group, key)); }
  void PassTo(uint64_t now_us) {
    Deadline due;
    while (deadlines.PopDue(now_us, &due)) {
      ASSERT_EQ(due.kind, DeadlineKind::kSharedCopy);
      copies.OnDue(due.id);
    }
  }
  void Sweep() {
    while (copies.has_work()) copies.Step();
  }

  DeadlineHeap deadlines;
  SharedCopies copies{0, kCopiesMax, deadlines};
  Heard heard{copies};
};

TEST_F(SharedCopiesTest, ACopyIsThereUntilItsTimeHasCome) {
  Note(1, 1, 100);
  Note(1, 2);
  PassTo(99);
  EXPECT_TRUE(Has(1, 1));
  PassTo(100);
  EXPECT_FALSE(Has(1, 1));
  EXPECT_TRUE(Has(1, 2));
  Note(1, 2, 200);  // the later word counts
  Note(1, 2, 300);
  PassTo(200);
  EXPECT_TRUE(Has(1, 2));
  EXPECT_EQ(deadlines.count(), 1u);
  PassTo(300);
  EXPECT_TRUE(heard.hashes.empty());
}

TEST_F(SharedCopiesTest, WhatIsGoneAsAWholeCountsNoMoreAtOnceAndIsToldInTurns) {
  for (uint64_t key = 0; key < 10; ++key) Note(1 + key % 2, key);
  copies.RemoveGroup(NameOf(1, 0).group);
  EXPECT_FALSE(Has(1, 4));
  EXPECT_TRUE(Has(2, 5));
  EXPECT_EQ(heard.hashes.size(), 10u);
  Note(1, 4);  // of after
  Sweep();
  EXPECT_EQ(heard.hashes.size(), 6u);
  EXPECT_TRUE(Has(1, 4));
  copies.RemoveAll();
  EXPECT_FALSE(Has(2, 5));
  EXPECT_FALSE(copies.has_some());
  Sweep();
  EXPECT_TRUE(heard.hashes.empty());
}

TEST_F(SharedCopiesTest, OfMoreThanThereIsRoomForOldOnesGo) {
  for (uint64_t key = 0; key < 3 * kCopiesMax; ++key) Note(1, key);
  EXPECT_EQ(heard.hashes.size(), kCopiesMax);
  EXPECT_EQ(copies.number_end(), kCopiesMax);
  for (uint64_t key = 2 * kCopiesMax; key < 3 * kCopiesMax; ++key) EXPECT_TRUE(Has(1, key)) << key;
}

TEST_F(SharedCopiesTest, WithoutATierThereIsNone) {
  SharedCopies none(0, 0, deadlines);
  none.Note(NameOf(1, 1), {}, kNever);
  none.Remove(NameOf(1, 1));
  none.RemoveKey(NameOf(1, 1).key);
  none.RemoveGroup(NameOf(1, 1).group);
  none.RemoveAll();
  none.Step();
  EXPECT_FALSE(none.Has(NameOf(1, 1)));
  EXPECT_FALSE(none.has_work());
}

TEST_F(SharedCopiesTest, RandomOperationsAgreeWithAMap) {
  std::mt19937 random(5);
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> until;  // by group and key
  uint64_t now_us = 1;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t group = 1 + random() % 3, key = random() % 20;
    switch (random() % 12) {
      case 0:
        copies.Remove(NameOf(group, key));
        until.erase({group, key});
        break;
      case 1:
        copies.RemoveKey(NameOf(group, key).key);
        for (uint64_t g = 1; g <= 3; ++g) until.erase({g, key});
        break;
      case 2:
        if (random() % 8 != 0) break;
        copies.RemoveGroup(NameOf(group, key).group);
        std::erase_if(until, [&](const auto& one) { return one.first.first == group; });
        break;
      case 3:
        if (random() % 32 != 0) break;
        copies.RemoveAll();
        until.clear();
        break;
      case 4:
        copies.Step();
        break;
      case 5:
        now_us += random() % 50;
        PassTo(now_us);
        std::erase_if(until, [&](const auto& one) { return one.second <= now_us; });
        break;
      default: {
        const uint64_t end_us = random() % 8 == 0 ? kNever : now_us + 1 + random() % 200;
        Note(group, key, end_us);
        until[{group, key}] = end_us;
      }
    }
    for (uint64_t g = 1; g <= 3; ++g) {
      for (uint64_t k = 0; k < 20; ++k) ASSERT_EQ(Has(g, k), until.contains({g, k})) << step;
    }
    if (copies.has_work()) continue;
    ASSERT_EQ(heard.hashes.size(), until.size()) << step;
    ASSERT_EQ(deadlines.count(),
              std::ranges::count_if(until, [](const auto& one) { return one.second != kNever; }));
  }
}

}  // namespace
}  // namespace terrace
