#include "daemon/index/radix_index.h"

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kErasePrefetchDistance = 8;

}  // namespace

RadixIndex::RadixIndex(const Options& options)
    : table_(options),
      keys_(options.blocks_max),
      ids_(options.blocks_max, &keys_),
      runs_(options.blocks_max) {
  TERRACE_CHECK(options.blocks_max > 0 && options.blocks_max <= uint32_t{1} << 30,
                "blocks_max is 1 to 2^30");
}

void RadixIndex::FindAll(const BlockKey& key, std::vector<BlockId>* ids) const {
  for (uint32_t g = 0; g < runs_.group_count(); ++g) {
    if (runs_.group(g).block_count == 0) continue;
    if (const BlockId id = Find(g, key); id != kBlockNone) ids->push_back(id);
  }
}

BlockId RadixIndex::Insert(uint32_t group_index, const BlockKey& key, uint32_t position,
                           BlockId parent) {
  const BlockId id = ids_.Take(parent, [this](BlockId other) { return runs_.IsFree(other); });
  if (id == kBlockNone) return kBlockNone;
  if (!table_.Add(table_.HashOf(group_index, key), id)) {
    ids_.Give(id, 1, [this](BlockId other) { return runs_.IsFree(other); });
    return kBlockNone;
  }
  keys_[id] = key;
  runs_.Add(id, group_index, position, parent);
  return id;
}

void RadixIndex::Erase(BlockId id) {
  // Paths go tail first.
  const uint32_t group_index = runs_.group_index(id);
  if (id >= kErasePrefetchDistance) Prefetch(group_index, keys_[id - kErasePrefetchDistance]);
  runs_.Erase(id);
  table_.Remove(table_.HashOf(group_index, keys_[id]), id);
}

void RadixIndex::Recycle(BlockId id) {
  runs_.Recycle(id);
  ids_.Give(id, 1, [this](BlockId other) { return runs_.IsFree(other); });
}

void RadixIndex::EraseTail(BlockRange tail, BlockId next) {
  TERRACE_CHECK(tail.block_count > 0, "a tail has blocks");
  if (next != kBlockNone) PrefetchTail(next);
  const uint32_t half = tail.block_count / 2;
  const uint32_t group_index = runs_.group_index(tail.first + tail.block_count - 1);
  table_.RemoveAll(group_index, {&keys_[tail.first + half], tail.block_count - half},
                   tail.first + half);
  if (next != kBlockNone) runs_.PrefetchRun(next);
  table_.RemoveAll(group_index, {&keys_[tail.first], half}, tail.first);
  runs_.EraseTail(tail);
  ids_.Give(tail.first, tail.block_count, [this](BlockId other) { return runs_.IsFree(other); });
}

std::span<std::byte> RadixIndex::TakeAhead() {
  const size_t id_count = ids_.id_count() + kIdsAhead;
  if (const auto keys = keys_.TakeAhead(id_count); !keys.empty()) return keys;
  if (const auto places = runs_.TakeAhead(id_count); !places.empty()) return places;
  return table_.TakeAhead();
}

void RadixIndex::CheckInvariants() const {
  runs_.CheckInvariants(id_count(), id_count() - ids_.free_count());
  for (BlockId id = 0; id < id_count(); ++id) {
    if (!runs_.IsLive(id)) continue;
    TERRACE_CHECK(Find(runs_.group_index(id), keys_[id]) == id, "a live block is found by its key");
  }
}

}  // namespace terrace
