// TwoTierCache: DRAM over a slower tier, each under its own EvictionPolicy, leaf-first. A request
// hits the leading run of its path that is in either; what hits below, and what is new, moves into
// DRAM. No newcomer passes by, since a block has to be in DRAM to be written below: room is made
// for one after the other, as in the daemon, and why the request ended is told last.
// What is new is written below when it is stored, if an AdmissionPolicy says so, and what DRAM
// drops is, if it is not there: never before what it hangs from. Copies stay below when they are
// read, so that the tier below holds what DRAM does, and more only by what it is larger. Behind
// both there may be a SharedCache, of several hosts: it is asked for what continues the run, and
// offered what a request leaves here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/policy/admission.h"
#include "daemon/policy/eviction/policy.h"
#include "tools/replay/dense_trace.h"
#include "tools/replay/shared_cache.h"

namespace terrace::tools {

struct TwoTierOptions {
  uint32_t dram_blocks = 0;  // > 0
  uint32_t lower_blocks = 0;
  uint64_t block_bytes = 1;
};

class TwoTierCache {
 public:
  struct Policies {
    EvictionPolicy& dram;
    EvictionPolicy& lower;
    AdmissionPolicy& admission;
    SharedCache* shared = nullptr;  // may be null
  };

  // The policies have been told of nothing yet.
  TwoTierCache(const DenseTrace& trace, const TwoTierOptions& options, const Policies& policies);

  void Serve(size_t request_index);

  uint64_t dram_hit_count() const { return dram_hit_count_; }
  uint64_t lower_hit_count() const { return lower_hit_count_; }
  uint64_t shared_hit_count() const { return shared_hit_count_; }
  uint64_t written_count() const { return written_count_; }

 private:
  struct Level {
    EvictionPolicy& policy;
    const uint32_t capacity_blocks;
    std::vector<uint8_t> is_resident;
    std::vector<uint32_t> child_counts;
    uint32_t resident_count = 0;
  };

  BlockTraits TraitsOf(BlockId id) const;
  // Nothing of the path goes for what comes.
  void InsertInDram(std::span<const BlockId> path, size_t known_count);
  void InsertBelow(BlockId id);
  void TellAdmission(std::span<const BlockId> path);
  void Remove(Level* level, BlockId id);
  uint32_t CountSharedHits(std::span<const BlockId> rest);
  void OfferToShared(std::span<const BlockId> path, size_t local_hit_count);
  void TouchBelow(std::span<const BlockId> hits, const TouchContext& context);
  // For so many that are to come.
  void MakeRoom(Level* level, uint32_t coming_count = 0);
  bool MayGoBelow(BlockId id) const;
  void WriteBelow(BlockId id, AdmissionMoment moment);
  void MoveBelow(BlockId id);
  void ForgetIfGone(BlockId id);

  const DenseTrace& trace_;
  const TwoTierOptions options_;
  AdmissionPolicy& admission_;
  SharedCache* const shared_;
  Level dram_;
  Level lower_;
  std::vector<BlockId> below_;      // of the path that is served
  std::vector<BlockId> ancestors_;  // of what DRAM drops, tail first
  std::vector<uint64_t> used_us_;   // by id
  std::vector<uint8_t> is_known_;   // to the admission policy
  uint64_t now_us_ = 0;
  uint64_t dram_hit_count_ = 0;
  uint64_t lower_hit_count_ = 0;
  uint64_t shared_hit_count_ = 0;
  uint64_t written_count_ = 0;
};

}  // namespace terrace::tools
