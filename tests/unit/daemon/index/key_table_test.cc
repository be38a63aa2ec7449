#include "daemon/index/key_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/stride.h"

namespace terrace {
namespace {

// A table of twice the places needs memory for them: those of few entries lie close together.
TEST(KeyTable, HasPlacesForItsEntriesNotForAllThatMayCome) {
  KeyTable table({.blocks_max = 1 << 22});
  std::mt19937 random(1);
  uint32_t entry_count = 0;
  for (const uint32_t end : {1000u, 100'000u, 1'000'000u}) {
    for (; entry_count < end; ++entry_count) ASSERT_TRUE(table.Add(random(), entry_count));
    EXPECT_LE(table.place_count(), std::max(4096u, 4 * entry_count));
    EXPECT_GE(table.place_count(), 2 * entry_count - entry_count / 4);
  }
}

// What a table says against a map, with `hash_of` few or many different hashes.
template <typename HashOf>
void CompareWithMap(uint32_t blocks_max, uint32_t steps, uint32_t seed, const HashOf& hash_of) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  KeyTable table({.blocks_max = blocks_max});
  std::multimap<uint32_t, BlockId> model;
  std::vector<std::pair<uint32_t, BlockId>> entries;
  std::mt19937 random(seed);
  const auto check = [&](uint32_t hash) {
    std::set<BlockId> seen;
    const auto all = [&](BlockId id) {
      EXPECT_TRUE(seen.insert(id).second);
      return false;
    };
    EXPECT_EQ(table.Find(hash, all), kBlockNone);
    const auto [first, end] = model.equal_range(hash);
    std::set<BlockId> wanted;
    for (auto at = first; at != end; ++at) wanted.insert(at->second);
    ASSERT_EQ(seen, wanted) << "hash " << hash << " of " << entries.size() << " entries";
  };
  BlockId next_id = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    const bool is_full = entries.size() == blocks_max;
    if (!is_full && (entries.empty() || random() % 8 != 0)) {
      const uint32_t hash = hash_of(random);
      ASSERT_TRUE(table.Add(hash, next_id));
      model.emplace(hash, next_id);
      entries.emplace_back(hash, next_id++);
      check(hash);
    } else {
      std::swap(entries[random() % entries.size()], entries.back());
      const auto [hash, id] = entries.back();
      entries.pop_back();
      table.Remove(hash, id);
      auto at = model.lower_bound(hash);
      while (at->second != id) ++at;
      model.erase(at);
      check(hash);
    }
    check(hash_of(random));
    if (!entries.empty()) check(entries[random() % entries.size()].first);
    // Between two steps of a doubling all are found, too.
    if (step % (997 * test::Stride()) != 0) continue;
    for (const auto& entry : entries) check(entry.first);
  }
}

TEST(KeyTable, FindsWhatItHasWhileItDoubles) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    CompareWithMap(20'000 + seed, 30'000, seed, [](std::mt19937& random) { return random(); });
  }
}

// Long searches that go on where others have moved already, at the table's end and at its
// beginning.
TEST(KeyTable, FindsWhatItHasWhileItDoublesThoughHashesCrowd) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const uint32_t crowd = seed % 2 == 0 ? 0xFFFFFFFF : 0;
    CompareWithMap(12'000, 14'000, seed, [crowd](std::mt19937& random) -> uint32_t {
      if (random() % 8 != 0) return random();
      return crowd ^ (random() % 4 << (random() % 20));
    });
  }
}

// Who knew the seed could crowd the last places: they have no room, and nobody else suffers.
TEST(KeyTable, RefusesWhatWouldLieBehindItsEnd) {
  KeyTable table({.blocks_max = 20'000});
  constexpr uint32_t kLast = 0xFFFFFFFF;
  uint32_t added_count = 0;
  while (added_count < 20'000 && table.Add(kLast, added_count)) ++added_count;
  EXPECT_GT(added_count, 1000u);
  EXPECT_LT(added_count, 20'000u);
  EXPECT_FALSE(table.Add(kLast, 90'000));
  EXPECT_TRUE(table.Add(7, 90'000));
  EXPECT_EQ(table.Find(7, [](BlockId) { return true; }), 90'000u);
  for (BlockId id = 0; id < added_count; ++id) {
    ASSERT_EQ(table.Find(kLast, [id](BlockId other) { return other == id; }), id);
  }
  table.Remove(kLast, 0);
  EXPECT_TRUE(table.Add(kLast, 0));
}

}  // namespace
}  // namespace terrace
