// ReplayCache: one tier of `capacity_blocks` blocks under one EvictionPolicy, touched path by path.
//
// A request hits the leading run of resident blocks of its path; the rest of the path moves in. A
// path longer than the tier keeps its head. Why the request ended is told last, of the last block
// of its path that is there.
//
// A policy that may let newcomers pass by is asked as the daemon asks it where DRAM is all that
// there is: an engine's step is told of before it comes, room is made for one newcomer after the
// other, and once the next ranks below all that is there it does not come, nor does what is behind
// it. Under any other policy all come, and then blocks leave until the tier is within its capacity
// again.
//
// kLeafFirst evicts what has no resident child, as the daemon does. kFree lets the policy choose
// among all blocks, with one access a block, tail first: what papers measure. What then lies behind
// a hole is resident and hits nothing. Nothing passes by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/policy/eviction/policy.h"
#include "tools/replay/dense_trace.h"

namespace terrace::tools {

enum class EvictionOrder : uint8_t { kLeafFirst, kFree };

struct ReplayCacheOptions {
  uint32_t capacity_blocks = 0;  // > 0
  EvictionOrder order = EvictionOrder::kLeafFirst;
  uint32_t step_blocks = 128;  // > 0; that an engine computes and stores at a time
};

class ReplayCache {
 public:
  // Spread over all bits, as real keys are: policies hash nothing themselves.
  static BlockKey KeyOf(BlockId id);

  // `policy` has been told of nothing yet.
  ReplayCache(const DenseTrace& trace, const ReplayCacheOptions& options, EvictionPolicy& policy);

  // The blocks of its path that hit.
  uint32_t Serve(size_t request_index);

  bool is_resident(BlockId id) const { return is_resident_[id] != 0; }
  uint32_t resident_count() const { return resident_count_; }
  uint64_t eviction_count() const { return eviction_count_; }
  uint64_t passed_by_count() const { return passed_by_count_; }  // before they came

 private:
  uint32_t CountHits(std::span<const BlockId> path) const;
  void ServeLeafFirst(std::span<const BlockId> path, uint32_t hit_count,
                      const TouchContext& context);
  void ServeFree(std::span<const BlockId> path, const TouchContext& context);
  // A line of a recording.
  void ServePart(std::span<const BlockId> path, const TraceRequest& request,
                 const TouchContext& context);
  void TellEnd(std::span<const BlockId> path, const TouchContext& context);
  void InsertBehind(std::span<const BlockId> path, uint32_t known_count, uint64_t now_us);
  // Step by step, until one of them does not come whole.
  void Store(std::span<const BlockId> path, size_t known_count, uint64_t now_us);
  // One step. False: its end passed by.
  bool Reserve(std::span<const BlockId> path, size_t known_count, uint64_t now_us);
  void TellMissed(std::span<const BlockId> missed);
  void Announce(std::span<const BlockId> coming, uint64_t now_us);
  void EvictSome(size_t wanted_count);
  // As its only child.
  bool HangsOnOneBefore(BlockId id) const;
  BlockTraits TraitsOf(BlockId id) const;
  void Insert(BlockId id, uint64_t now_us);
  void Evict(BlockId id);
  // A child comes, or may come; it has left, or does not come.
  void AddChild(BlockId parent);
  void DropChild(BlockId parent);

  const DenseTrace& trace_;
  const ReplayCacheOptions options_;
  EvictionPolicy& policy_;
  const bool may_pass_by_;  // while its policy says so
  std::vector<uint8_t> is_resident_;
  std::vector<uint32_t> child_counts_;  // resident children, and a writer that holds the block
  std::vector<BlockKey> coming_;
  uint32_t resident_count_ = 0;
  uint64_t eviction_count_ = 0;
  uint64_t passed_by_count_ = 0;
};

}  // namespace terrace::tools
