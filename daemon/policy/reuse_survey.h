// ReuseSurvey: how likely what leaves DRAM is to be used again. What is asked about is watched, a
// sample of it, until its next use, whether or not it was kept; a HazardModel is fitted to what
// became of them. Apart from the model that evicts, since that one mostly sees uses so soon that
// the block never left.
//
// THREADING: one thread. LIMITS: kWatchedMax observations of about 100 bytes, a byte a block.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/index/block_id.h"
#include "daemon/index/chunked_array.h"
#include "daemon/policy/eviction/hazard_model.h"
#include "terrace/block_key.h"

namespace terrace {

class ReuseSurvey {
 public:
  static constexpr uint32_t kWatchedMax = 8192;

  void OnInsert(BlockId id, const BlockKey& key, uint64_t now_us);
  void OnTouch(std::span<const BlockId> run, uint64_t now_us);
  // A block of these traits leaves now: watch it.
  void OnLeave(BlockId id, const ReuseTraits& traits, uint64_t now_us);
  // Of a block that leaves now, that it is used within `horizon_us`.
  float Chance(const ReuseTraits& traits, uint64_t horizon_us) const {
    return model_.ReuseChance(traits, 0, horizon_us);
  }

  // As EvictionPolicy's.
  std::vector<std::byte> Learned() const { return model_.Learned(); }
  bool StartFrom(std::span<const std::byte> learned) { return model_.StartFrom(learned); }

 private:
  struct Watched {
    uint64_t left_us = 0;
    uint64_t waited_us = 0;  // until its next use; 0: it still waits
    uint64_t fingerprint = 0;
    ReuseTraits traits;
  };
  struct Seen {
    uint64_t fingerprint = 0;
    bool is_watched = false;
  };

  void EndWait(uint64_t fingerprint, uint64_t now_us);
  void LearnSome(uint64_t now_us);

  HazardModel model_;
  ChunkedArray<Seen> seen_;                         // by id
  std::vector<Watched> watched_;                    // a ring
  std::unordered_map<uint64_t, uint32_t> waiting_;  // fingerprint → place in it
  uint64_t watched_count_ = 0;
  uint32_t next_learned_ = 0;
};

}  // namespace terrace
