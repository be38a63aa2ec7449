#include "tools/replay/replay_cache.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace::tools {

BlockKey ReplayCache::KeyOf(BlockId id) {
  uint64_t x = (uint64_t{id} + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return {.low = x ^ (x >> 31), .high = x * 0xD6E8FEB86659FD93u};
}

ReplayCache::ReplayCache(const DenseTrace& trace, const ReplayCacheOptions& options,
                         EvictionPolicy& policy)
    : trace_(trace),
      options_(options),
      policy_(policy),
      is_resident_(trace.unique_count()),
      child_counts_(trace.unique_count()) {
  TERRACE_CHECK(options.capacity_blocks > 0, "a tier of no blocks replays nothing");
}

uint32_t ReplayCache::Serve(size_t request_index) {
  const TraceRequest& request = trace_.request(request_index);
  std::span<const BlockId> path = trace_.path(request_index);
  const uint32_t hit_count = CountHits(path);
  path = path.first(std::min<size_t>(path.size(), options_.capacity_blocks));
  if (path.empty()) return 0;
  const TouchContext context{.now_us = request.timestamp_ms * 1000,
                             .session_hash = request.session_hash,
                             .end_reason = request.end_reason};
  if (request.kind != TraceKind::kAskedAndStored) {
    ServePart(path, request.kind, context);
  } else if (options_.order == EvictionOrder::kFree) {
    ServeFree(path, context);
  } else {
    ServeLeafFirst(path, hit_count, context);
  }
  return request.is_asked() ? hit_count : 0;
}

// As the daemon does: an Acquire touches what it finds, a Reserve says by its new blocks that their
// prefix was used, a Release touches the tip.
void ReplayCache::ServePart(std::span<const BlockId> path, TraceKind kind,
                            const TouchContext& context) {
  const uint32_t known_count = CountHits(path);
  TouchContext lookup = context;
  lookup.end_reason = protocol::EndReason::kUnknown;
  if (kind == TraceKind::kEnded) {
    if (is_resident(path.back())) policy_.OnTouch(path.last(1), context);
  } else if (kind == TraceKind::kAsked || known_count == path.size()) {
    if (known_count > 0) policy_.OnTouch(path.first(known_count), lookup);
  } else {
    InsertBehind(path, known_count, context.now_us);
    while (resident_count_ > options_.capacity_blocks) Evict(policy_.Victim());
  }
}

void ReplayCache::InsertBehind(std::span<const BlockId> path, uint32_t known_count,
                               uint64_t now_us) {
  if (known_count > 0) {
    const BlockId parent = path[known_count - 1];
    if (child_counts_[parent]++ == 0) policy_.OnHeld(parent);
  }
  for (size_t i = known_count; i < path.size(); ++i) {
    Insert(path[i], now_us);
    child_counts_[path[i]] = i + 1 < path.size() ? 1 : 0;
  }
  policy_.OnCandidate(path.back());
}

uint32_t ReplayCache::CountHits(std::span<const BlockId> path) const {
  uint32_t count = 0;
  while (count < path.size() && is_resident(path[count])) ++count;
  return count;
}

void ReplayCache::ServeLeafFirst(std::span<const BlockId> path, uint32_t hit_count,
                                 const TouchContext& context) {
  TouchContext lookup = context;
  lookup.end_reason = protocol::EndReason::kUnknown;  // known when the request has ended
  if (hit_count > 0) policy_.OnTouch(path.first(hit_count), lookup);
  if (hit_count < path.size()) InsertBehind(path, hit_count, context.now_us);
  if (context.end_reason != protocol::EndReason::kUnknown) {
    policy_.OnTouch(path.last(1), context);
  }
  while (resident_count_ > options_.capacity_blocks) Evict(policy_.Victim());
}

void ReplayCache::ServeFree(std::span<const BlockId> path, const TouchContext& context) {
  for (size_t i = path.size(); i-- > 0;) {
    if (is_resident(path[i])) {
      policy_.OnTouch(path.subspan(i, 1), context);
      continue;
    }
    if (resident_count_ == options_.capacity_blocks) Evict(policy_.Victim());
    Insert(path[i], context.now_us);
    policy_.OnCandidate(path[i]);
  }
}

void ReplayCache::Insert(BlockId id, uint64_t now_us) {
  policy_.OnInsert(id,
                   {.key = KeyOf(id),
                    .byte_count = 1,
                    .position = trace_.position(id),
                    .block_tokens = trace_.block_tokens(),
                    .parent = trace_.parent(id)},
                   now_us);
  is_resident_[id] = 1;
  ++resident_count_;
}

void ReplayCache::Evict(BlockId id) {
  TERRACE_CHECK(id != kBlockNone && is_resident(id), "a policy names a resident candidate");
  policy_.OnHeld(id);
  policy_.OnErase(id);
  is_resident_[id] = 0;
  --resident_count_;
  ++eviction_count_;
  const BlockId parent = trace_.parent(id);
  if (options_.order == EvictionOrder::kLeafFirst && parent != kBlockNone &&
      --child_counts_[parent] == 0) {
    policy_.OnCandidate(parent);
  }
}

}  // namespace terrace::tools
