// The RadixIndex against plain maps: random chains that part and meet again, holes, edges learned
// late, ids used again, pins over whatever the ids belong to. TERRACE_SIM_SEEDS: how many seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "daemon/index/radix_index.h"

namespace terrace {
namespace {

constexpr uint32_t kBlocksMax = 300;
constexpr uint32_t kGroups = 2;
constexpr uint32_t kStepsPerSeed = 20000;
constexpr uint32_t kStepsPerCheck = 250;

struct ModelBlock {
  uint32_t group_index = 0;
  BlockKey key;
  uint32_t position = 0;
  BlockId parent = kBlockNone;
  uint64_t touched_us = 0;
  std::set<BlockId> children;
};

class World {
 public:
  explicit World(uint64_t seed)
      : random_(seed), index_({.blocks_max = kBlocksMax, .hash_seed = seed}) {}

  void Step() {
    const uint64_t dice = random_() % 100;
    if (dice < 30) {
      Store();
    } else if (dice < 40) {
      EraseTail();
    } else if (dice < 46) {
      EraseAny();
    } else if (dice < 60) {
      RecycleAny();
    } else if (dice < 70) {
      LinkAny();
    } else if (dice < 80) {
      PinAny();
    } else if (dice < 88) {
      UnpinAny();
    } else if (dice < 92) {
      TouchAny();
    } else {
      MatchAny();
    }
  }

  void Check() const {
    index_.CheckInvariants();
    EXPECT_EQ(index_.runs().live_count(), blocks_.size());
    for (const auto& [id, block] : blocks_) {
      const RadixIndex::Node node = index_.node(id);
      EXPECT_TRUE(node.is_live);
      EXPECT_EQ(node.key, block.key);
      EXPECT_EQ(node.group_index, block.group_index);
      EXPECT_EQ(node.position, block.position);
      EXPECT_EQ(node.parent, block.parent);
      EXPECT_EQ(node.child_count, block.children.size());
      EXPECT_GE(index_.touched_us(id), block.touched_us);
      EXPECT_LE(index_.touched_us(id), now_us_);
      EXPECT_EQ(index_.pin_count(id), pins_.contains(id) ? pins_.at(id) : 0);
      std::set<BlockId> children;
      for (BlockId child = node.first_child; child != kBlockNone;
           child = index_.node(child).next_sibling) {
        EXPECT_TRUE(children.insert(child).second);
      }
      EXPECT_EQ(children, block.children);
      EXPECT_EQ(index_.Find(block.group_index, block.key), id);
    }
    for (const BlockId id : erased_) EXPECT_FALSE(index_.node(id).is_live);
    for (const auto& [id, pin_count] : pins_) EXPECT_EQ(index_.pin_count(id), pin_count);
    EXPECT_EQ(index_.runs().pinned_count(), pins_.size());
    for (uint32_t group = 0; group < kGroups; ++group) {
      std::set<BlockId> roots, expected;
      for (BlockId root = index_.first_root(group); root != kBlockNone;
           root = index_.node(root).next_sibling) {
        EXPECT_TRUE(roots.insert(root).second);
      }
      for (const auto& [id, block] : blocks_) {
        if (block.group_index == group && block.parent == kBlockNone) expected.insert(id);
      }
      EXPECT_EQ(roots, expected);
    }
  }

 private:
  // A key says all that comes before it, as honest keys do: few tokens, so that paths meet.
  std::vector<BlockKey> RandomPath() {
    const uint32_t block_count = 1 + static_cast<uint32_t>(random_() % 60);
    std::vector<BlockKey> path;
    uint64_t chain = random_() % 3;
    for (uint32_t i = 0; i < block_count; ++i) {
      chain = (chain ^ (random_() % 12 == 0 ? 1 + random_() % 3 : 0)) * 0x9E3779B97F4A7C15 + i;
      path.push_back({.low = chain, .high = chain >> 7});
    }
    return path;
  }
  BlockId Known(uint32_t group, const BlockKey& key) const {
    const auto found = by_key_.find({group, key});
    return found == by_key_.end() ? kBlockNone : found->second;
  }
  BlockId AnyBlock() {
    if (blocks_.empty()) return kBlockNone;
    const auto next = blocks_.lower_bound(static_cast<BlockId>(random_() % kBlocksMax));
    return next == blocks_.end() ? blocks_.begin()->first : next->first;
  }
  bool MayLink(BlockId child, BlockId parent) const {
    const ModelBlock& below = blocks_.at(child);
    const ModelBlock& above = blocks_.at(parent);
    return below.parent == kBlockNone && below.group_index == above.group_index &&
           below.position == above.position + 1;
  }
  void Join(BlockId child, BlockId parent) {
    blocks_.at(child).parent = parent;
    blocks_.at(parent).children.insert(child);
  }

  // A chain, as Reserve stores it: with edges at once, learned after, or flat.
  void Store() {
    const auto group = static_cast<uint32_t>(random_() % kGroups);
    const uint64_t kind = random_() % 8;
    BlockId parent = kBlockNone;
    const std::vector<BlockKey> path = RandomPath();
    for (uint32_t i = 0; i < path.size(); ++i) {
      BlockId id = Known(group, path[i]);
      if (id == kBlockNone) {
        id = index_.Insert(group, path[i], i, kind < 6 ? parent : kBlockNone);
        if (id == kBlockNone) {
          EXPECT_EQ(blocks_.size() + erased_.size(), kBlocksMax);
          return;
        }
        EXPECT_FALSE(blocks_.contains(id) || erased_.contains(id));
        blocks_[id] = {.group_index = group, .key = path[i], .position = i};
        by_key_[{group, path[i]}] = id;
        if (kind < 6 && parent != kBlockNone && MayLink(id, parent)) Join(id, parent);
      }
      if (parent != kBlockNone && kind < 7) Learn(id, parent);
      parent = id;
    }
  }
  void Learn(BlockId child, BlockId parent) {
    const bool is_news = MayLink(child, parent);
    EXPECT_EQ(index_.Link(child, parent), is_news);
    if (is_news) Join(child, parent);
  }
  // Honest clients only: an edge joins what the keys join.
  void LinkAny() {
    const BlockId child = AnyBlock();
    if (child == kBlockNone) return;
    const BlockId parent = AnyBlock();
    if (!MayLink(child, parent)) Learn(child, parent);
  }

  void Erase(BlockId id) {
    index_.Erase(id);
    const ModelBlock block = blocks_.at(id);
    if (block.parent != kBlockNone) blocks_.at(block.parent).children.erase(id);
    for (const BlockId child : block.children) blocks_.at(child).parent = kBlockNone;
    by_key_.erase({block.group_index, block.key});
    blocks_.erase(id);
    erased_.insert(id);
  }
  void EraseAny() {
    if (const BlockId id = AnyBlock(); id != kBlockNone) Erase(id);
  }
  void EraseTail() {
    BlockId id = AnyBlock();
    if (id == kBlockNone) return;
    while (!blocks_.at(id).children.empty()) id = *blocks_.at(id).children.begin();
    if (random_() % 2 == 0 && !pins_.contains(id)) return EraseAtOnce(id);
    for (uint64_t left = 1 + random_() % 30; left > 0 && id != kBlockNone; --left) {
      const ModelBlock block = blocks_.at(id);
      if (!block.children.empty()) return;
      Erase(id);
      if (random_() % 4 != 0 && !pins_.contains(id)) Recycle(id);
      id = block.parent;
    }
  }
  // The same in one go, as far as one run leads.
  void EraseAtOnce(BlockId last) {
    const BlockId first = index_.runs().RunAt(last).first;
    const BlockRange run{.first = first, .block_count = last - first + 1};
    for (uint32_t i = 1; i < run.block_count; ++i) {
      EXPECT_EQ(blocks_.at(run.first + i).parent, run.first + i - 1);
      EXPECT_EQ(blocks_.at(run.first + i - 1).children.size(), 1u);
    }
    const uint32_t block_count = 1 + static_cast<uint32_t>(random_() % run.block_count);
    index_.EraseTail({.first = last + 1 - block_count, .block_count = block_count}, AnyBlock());
    for (BlockId id = last; id + block_count > last; --id) {
      const ModelBlock block = blocks_.at(id);
      if (block.parent != kBlockNone) blocks_.at(block.parent).children.erase(id);
      by_key_.erase({block.group_index, block.key});
      blocks_.erase(id);
      if (id == 0) break;
    }
  }
  void Recycle(BlockId id) {
    index_.Recycle(id);
    erased_.erase(id);
  }
  void RecycleAny() {
    for (int i = 0; i < 8 && !erased_.empty(); ++i) {
      const auto next = erased_.lower_bound(static_cast<BlockId>(random_() % kBlocksMax));
      const BlockId id = next == erased_.end() ? *erased_.begin() : *next;
      if (!pins_.contains(id)) Recycle(id);
    }
  }

  // Consecutive ids in use, whatever they belong to.
  BlockRange AnyRange() {
    const BlockId first = AnyBlock();
    if (first == kBlockNone) return {.first = 0, .block_count = 0};
    BlockRange range{.first = first, .block_count = 0};
    const uint32_t block_count = 1 + static_cast<uint32_t>(random_() % 50);
    while (range.block_count < block_count && (blocks_.contains(first + range.block_count) ||
                                               erased_.contains(first + range.block_count))) {
      ++range.block_count;
    }
    return range;
  }
  void PinAny() {
    if (leases_.size() > 20) return;
    const BlockRange range = AnyRange();
    if (range.block_count == 0) return;
    index_.Pin(range);
    for (uint32_t i = 0; i < range.block_count; ++i) {
      ++pins_[range.first + i];
      if (random_() % 30 == 0)
        leases_.push_back({range.first + i, 1});
      else if (!leases_.empty() && i > 0 &&
               leases_.back().first + leases_.back().block_count == range.first + i)
        ++leases_.back().block_count;
      else
        leases_.push_back({range.first + i, 1});
    }
  }
  // In other pieces than they were pinned in.
  void UnpinAny() {
    if (leases_.empty()) return;
    std::swap(leases_[random_() % leases_.size()], leases_.back());
    const BlockRange range = leases_.back();
    leases_.pop_back();
    index_.Unpin(range);
    for (uint32_t i = 0; i < range.block_count; ++i) {
      if (--pins_.at(range.first + i) == 0) pins_.erase(range.first + i);
    }
  }
  void TouchAny() {
    now_us_ += random_() % (2 * RadixIndex::kTouchSlackUs);
    const BlockRange range = AnyRange();
    index_.Touch(range, now_us_);
    for (uint32_t i = 0; i < range.block_count; ++i) {
      const auto block = blocks_.find(range.first + i);
      if (block != blocks_.end()) block->second.touched_us = now_us_;
    }
  }

  void MatchAny() {
    const auto group = static_cast<uint32_t>(random_() % kGroups);
    std::vector<BlockKey> path = RandomPath();
    const uint32_t skipped =
        random_() % 3 == 0 ? static_cast<uint32_t>(random_() % path.size()) : 0;
    path.erase(path.begin(), path.begin() + skipped);
    CheckMatch(group, path, RadixIndex::Proof::kChain);
    for (int i = 0; i < 3; ++i) {
      CheckMatch(group, path, RadixIndex::Proof::kEveryKey);
      // From here on no chain: what it answers must not depend on that.
      BlockKey& other = path[random_() % path.size()];
      const uint64_t kind = random_() % 3;
      if (kind == 0) other.high ^= 1;
      if (kind == 1) std::swap(other, path[random_() % path.size()]);
      if (kind == 2) other = path[0];
    }
  }
  void CheckMatch(uint32_t group, const std::vector<BlockKey>& path, RadixIndex::Proof proof) {
    std::vector<BlockId> expected;
    for (const BlockKey& key : path) {
      const BlockId id = Known(group, key);
      if (id == kBlockNone) break;
      expected.push_back(id);
    }
    std::vector<BlockRange> ranges;
    EXPECT_EQ(index_.Match(group, path, proof, &ranges), expected.size());
    std::vector<BlockId> run;
    for (const BlockRange& range : ranges) {
      EXPECT_GT(range.block_count, 0u);
      for (uint32_t i = 0; i < range.block_count; ++i) run.push_back(range.first + i);
    }
    EXPECT_EQ(run, expected);
  }

  std::mt19937_64 random_;
  RadixIndex index_;
  std::map<BlockId, ModelBlock> blocks_;
  std::map<std::pair<uint32_t, BlockKey>, BlockId> by_key_;
  std::set<BlockId> erased_;
  std::map<BlockId, uint32_t> pins_;
  std::vector<BlockRange> leases_;  // who pinned what
  uint64_t now_us_ = 0;
};

TEST(RadixIndexModel, AgreesWithPlainMapsWhateverComes) {
  const char* wanted = std::getenv("TERRACE_SIM_SEEDS");
  const uint64_t seed_count = wanted == nullptr ? 10 : std::strtoull(wanted, nullptr, 10);
  for (uint64_t seed = 0; seed < seed_count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    for (uint32_t step = 0; step < kStepsPerSeed; ++step) {
      world.Step();
      if (step % kStepsPerCheck == 0) world.Check();
      if (testing::Test::HasFailure()) return;
    }
    world.Check();
  }
}

}  // namespace
}  // namespace terrace
