// PrefixRuns: the prefix tree of a domain in chains without branches (runs), and what each is
// worth: how much prefill its hits have saved, and how much for each byte it takes.
//
// THREADING: one thread. LIMITS: kBlocksMax blocks, some 8 MiB; what is beyond is not looked at.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/space.h"

namespace terrace {

// What a hit of one block of a group saves.
using SavedUsByGroup = std::map<GroupId, double>;

struct PrefixRun {
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  GroupId group;
  BlockKey last;            // its last block: names the whole prefix up to there
  uint32_t parent = kNone;  // of the runs; they come before
  uint32_t position = 0;    // of its first block
  uint32_t block_count = 0;
  uint32_t lease_count = 0;  // of the block that most hold
  uint8_t tier_mask = 0;     // where any of its blocks are
  uint64_t byte_count = 0;
  uint64_t hit_count = 0;  // of its blocks
  double saved_us = 0;
  // With all runs below.
  uint64_t tree_block_count = 0;
  double tree_saved_us = 0;

  double saved_us_per_byte() const {
    return byte_count == 0 ? 0 : saved_us / static_cast<double>(byte_count);
  }
};

class PrefixRuns {
 public:
  static constexpr uint32_t kBlocksMax = 1 << 16;

  explicit PrefixRuns(SavedUsByGroup saved_us) : saved_us_(std::move(saved_us)) {}

  // Parents before their children. False: no further block is taken.
  bool Add(const protocol::ListEntry& block);
  // After the last one: sums up the trees.
  void Finish();

  std::span<const PrefixRun> runs() const { return runs_; }
  uint32_t block_count() const { return block_count_; }

 private:
  struct Place {
    GroupId group;
    BlockKey key;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct PlaceHash {
    size_t operator()(const Place& place) const {
      return place.key.low ^ (place.key.high + place.group.low * 31);
    }
  };
  uint32_t RunFor(const protocol::ListEntry& block);

  const SavedUsByGroup saved_us_;
  std::vector<PrefixRun> runs_;
  // The run of each block, and whether it has one child.
  struct Seen {
    uint32_t run = 0;
    bool has_one_child = false;
  };
  std::unordered_map<Place, Seen, PlaceHash> seen_;
  uint32_t block_count_ = 0;
};

// Those worth a look, with all above them, each followed by those below it.
std::vector<uint32_t> BestTree(std::span<const PrefixRun> runs, size_t count_max);
// Those that have saved the most for what they take.
std::vector<uint32_t> BestPerByte(std::span<const PrefixRun> runs, size_t count_max);

}  // namespace terrace
