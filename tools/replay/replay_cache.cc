#include "tools/replay/replay_cache.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace::tools {
namespace {

constexpr size_t kEvictionsAtOnceMax = 64;  // as Evictor::kEvictionsAtOnceMax

}  // namespace

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
      may_pass_by_(options.order == EvictionOrder::kLeafFirst && policy.MayPassBy()),
      is_resident_(trace.unique_count()),
      child_counts_(trace.unique_count()) {
  TERRACE_CHECK(options.capacity_blocks > 0, "a tier of no blocks replays nothing");
  TERRACE_CHECK(options.step_blocks > 0, "an engine gets on with each step");
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
    ServePart(path, request, context);
  } else if (options_.order == EvictionOrder::kFree) {
    ServeFree(path, context);
  } else {
    ServeLeafFirst(path, hit_count, context);
  }
  return request.is_asked() ? hit_count : 0;
}

// As the daemon does: an Acquire touches what it finds, a Reserve says by its new blocks that their
// prefix was used, a Release touches the tip.
void ReplayCache::ServePart(std::span<const BlockId> path, const TraceRequest& request,
                            const TouchContext& context) {
  const uint32_t known_count = CountHits(path);
  TouchContext lookup = context;
  lookup.end_reason = protocol::EndReason::kUnknown;
  if (request.kind == TraceKind::kEnded) {
    if (is_resident(path.back())) policy_.OnTouch(path.last(1), context);
  } else if (request.kind == TraceKind::kAsked || known_count == path.size()) {
    if (known_count > 0) policy_.OnTouch(path.first(known_count), lookup);
    TellMissed(path.subspan(known_count));
  } else if (!may_pass_by_) {
    InsertBehind(path, known_count, context.now_us);
    while (resident_count_ > options_.capacity_blocks) Evict(policy_.Victim());
  } else if (known_count >= request.stored_from) {
    Reserve(path, known_count, context.now_us);  // one step, as it was stored
  } else {
    passed_by_count_ += path.size() - request.stored_from;  // nothing finds what hangs on nothing
  }
}

void ReplayCache::InsertBehind(std::span<const BlockId> path, uint32_t known_count,
                               uint64_t now_us) {
  if (known_count > 0) AddChild(path[known_count - 1]);
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
  if (may_pass_by_) {
    TellMissed(path.subspan(hit_count));
    Store(path, hit_count, context.now_us);
  } else if (hit_count < path.size()) {
    InsertBehind(path, hit_count, context.now_us);
  }
  if (context.end_reason != protocol::EndReason::kUnknown) TellEnd(path, context);
  while (resident_count_ > options_.capacity_blocks) Evict(policy_.Victim());
}

void ReplayCache::TellEnd(std::span<const BlockId> path, const TouchContext& context) {
  size_t count = path.size();
  while (count > 0 && !is_resident(path[count - 1])) --count;
  if (count > 0) policy_.OnTouch(path.subspan(count - 1, 1), context);
}

void ReplayCache::Store(std::span<const BlockId> path, size_t known_count, uint64_t now_us) {
  while (known_count < path.size()) {
    const size_t end = std::min(path.size(), known_count + options_.step_blocks);
    if (!Reserve(path.first(end), known_count, now_us)) {
      passed_by_count_ += path.size() - end;  // an engine does not offer them
      return;
    }
    known_count = end;
  }
}

// The daemon's order of the same calls is Reserver's (daemon/store/storing_verbs.cc), and where
// room is made Evictor's (daemon/residency/evictor.cc).
bool ReplayCache::Reserve(std::span<const BlockId> path, size_t known_count, uint64_t now_us) {
  if (known_count > 0) AddChild(path[known_count - 1]);
  const bool may_pass_by = policy_.MayPassBy();
  if (may_pass_by) Announce(path.subspan(known_count), now_us);
  size_t count = known_count;
  for (; count < path.size(); ++count) {
    if (resident_count_ == options_.capacity_blocks) {
      if (may_pass_by && policy_.PassesBy()) break;
      EvictSome(path.size() - count);
    }
    Insert(path[count], now_us);
    child_counts_[path[count]] = 1;  // its writer, and then what comes behind it
  }
  if (count > 0) DropChild(path[count - 1]);
  passed_by_count_ += path.size() - count;
  return count == path.size();
}

void ReplayCache::Announce(std::span<const BlockId> coming, uint64_t now_us) {
  coming_.clear();
  for (const BlockId id : coming) coming_.push_back(KeyOf(id));
  policy_.OnComing(coming_, TraitsOf(coming.front()), 0, now_us);
}

void ReplayCache::TellMissed(std::span<const BlockId> missed) {
  coming_.clear();
  for (const BlockId id : missed) coming_.push_back(KeyOf(id));
  policy_.OnMissed(coming_, {});
}

// Of a run that goes as one, as many as newcomers want room.
void ReplayCache::EvictSome(size_t wanted_count) {
  const BlockId victim = policy_.Victim();
  TERRACE_CHECK(victim != kBlockNone && is_resident(victim), "a policy names a resident candidate");
  const size_t count_max = std::min(wanted_count, kEvictionsAtOnceMax);
  BlockId first = victim;
  while (victim - first + 1 < count_max && HangsOnOneBefore(first)) --first;
  if (first == victim) return Evict(victim);
  const uint32_t count = policy_.EraseVictims({.first = first, .block_count = victim - first + 1});
  const BlockId last_gone = victim + 1 - count;
  for (BlockId id = last_gone; id <= victim; ++id) {
    is_resident_[id] = 0;
    child_counts_[id] = 0;
  }
  resident_count_ -= count;
  eviction_count_ += count;
  const BlockId next = trace_.parent(last_gone);
  if (last_gone > first) {
    child_counts_[next] = 0;  // and the policy has made a candidate of it
  } else if (next != kBlockNone) {
    DropChild(next);
  }
}

bool ReplayCache::HangsOnOneBefore(BlockId id) const {
  return id > 0 && trace_.parent(id) == id - 1 && child_counts_[id - 1] == 1;
}

void ReplayCache::AddChild(BlockId parent) {
  if (child_counts_[parent]++ == 0) policy_.OnHeld(parent);
}

void ReplayCache::DropChild(BlockId parent) {
  if (--child_counts_[parent] == 0) policy_.OnCandidate(parent);
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

BlockTraits ReplayCache::TraitsOf(BlockId id) const {
  return {.key = KeyOf(id),
          .byte_count = 1,
          .position = trace_.position(id),
          .block_tokens = trace_.block_tokens(),
          .parent = trace_.parent(id)};
}

void ReplayCache::Insert(BlockId id, uint64_t now_us) {
  policy_.OnInsert(id, TraitsOf(id), now_us);
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
  if (options_.order == EvictionOrder::kLeafFirst && parent != kBlockNone) DropChild(parent);
}

}  // namespace terrace::tools
