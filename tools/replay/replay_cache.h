// ReplayCache: one tier of `capacity_blocks` blocks under one EvictionPolicy, touched path by path.
//
// A request hits the leading run of resident blocks of its path; the rest of the path moves in,
// and then blocks leave until the tier is within its capacity again. So a policy may let a newcomer
// pass by: it is the first to go. A path longer than the tier keeps its head.
//
// kLeafFirst evicts what has no resident child, as the daemon does. kFree lets the policy choose
// among all blocks, with one access a block, tail first: what papers measure. What then lies behind
// a hole is resident and hits nothing.
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
};

class ReplayCache {
 public:
  // Spread over all bits, as real keys are: policies hash nothing themselves.
  static BlockKey KeyOf(BlockId id);

  ReplayCache(const DenseTrace& trace, const ReplayCacheOptions& options, EvictionPolicy& policy);

  // The blocks of its path that hit.
  uint32_t Serve(size_t request_index);

  bool is_resident(BlockId id) const { return is_resident_[id] != 0; }
  uint32_t resident_count() const { return resident_count_; }
  uint64_t eviction_count() const { return eviction_count_; }

 private:
  uint32_t CountHits(std::span<const BlockId> path) const;
  void ServeLeafFirst(std::span<const BlockId> path, uint32_t hit_count,
                      const TouchContext& context);
  void ServeFree(std::span<const BlockId> path, const TouchContext& context);
  // A line of a recording.
  void ServePart(std::span<const BlockId> path, TraceKind kind, const TouchContext& context);
  void InsertBehind(std::span<const BlockId> path, uint32_t known_count, uint64_t now_us);
  void Insert(BlockId id, uint64_t now_us);
  void Evict(BlockId id);

  const DenseTrace& trace_;
  const ReplayCacheOptions options_;
  EvictionPolicy& policy_;
  std::vector<uint8_t> is_resident_;
  std::vector<uint32_t> child_counts_;  // resident children
  uint32_t resident_count_ = 0;
  uint64_t eviction_count_ = 0;
};

}  // namespace terrace::tools
