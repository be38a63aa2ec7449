// What came of what an answer promised, by where it came from.
#include "daemon/lease/promised_hits.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/daemon/lease/lease_fixture.h"
#include "tests/unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using protocol::BlockSpan;

TEST(PromisedHits, AreCountedOnceInHoweverManyPieces) {
  LeaseWorld w;
  Group& group = *w.domain.groups[0];
  SlotClasses classes;
  ASSERT_TRUE(group.Open(TestGroup("counted", {TestSpace(0)}), 1, &w.domain.slots, &classes).ok());
  const auto& tokens = w.domain.counters.acquire_tokens_by_tier;
  const auto& bytes = w.domain.counters.acquire_bytes_by_tier;
  uint64_t lost = 0;
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<BlockSpan> spans;
    std::vector<uint32_t> tier_of;
    for (uint32_t left = random() % 9; left > 0; --left) {
      const auto tier = static_cast<TierKind>(random() % protocol::kTierKindCount);
      const uint32_t count = 1 + random() % 9;
      spans.push_back({.first_block = static_cast<uint32_t>(tier_of.size()),
                       .block_count = count,
                       .tier = tier});
      tier_of.insert(tier_of.end(), count, static_cast<uint32_t>(tier));
    }
    const auto count = static_cast<uint32_t>(tier_of.size());
    PromisedHits promised(0, count, 0, spans);
    std::vector<uint64_t> expected(std::begin(tokens), std::end(tokens));
    uint32_t delivered = 0, lost_from = count;
    const auto deliver_to = [&](uint32_t end) {
      promised.Deliver(w.domain, end);
      for (; delivered < std::min(end, lost_from); ++delivered) {
        expected[tier_of[delivered]] += group.block_tokens();
      }
    };
    for (int piece = 0; piece < 8; ++piece) deliver_to(random() % (count + 2));
    promised.Lose(w.domain, count / 2);
    lost_from = std::max(delivered, count / 2);
    deliver_to(count);
    promised.LoseRest(w.domain);
    ASSERT_EQ(std::vector<uint64_t>(std::begin(tokens), std::end(tokens)), expected) << round;
    lost += count - lost_from;
    ASSERT_EQ(w.domain.counters.acquire_blocks_lost, lost) << round;
  }
  for (size_t tier = 0; tier < std::size(bytes); ++tier) {
    EXPECT_EQ(bytes[tier] / group.block_bytes(), tokens[tier] / group.block_tokens());
  }
}

}  // namespace
}  // namespace terrace
