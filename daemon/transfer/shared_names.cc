#include "daemon/transfer/shared_names.h"

#include <algorithm>

#include "terrace/protocol.h"
#include "tiers/shared_name.h"

namespace terrace {

bool FindRun(const RadixIndex& index, BlockId id, BlockKey* run) {
  BlockId first = id;
  for (uint32_t up = index.node(id).position % kRedisRunBlocks; up > 0; --up) {
    first = index.node(first).parent;
    if (first == kBlockNone) return false;
  }
  *run = index.node(first).key;
  return true;
}

// Blocks of a run lie under the key of its first: of a run that begins before the request, the
// index may know it.
std::vector<SharedPlace> NameKeys(const RadixIndex& index, const KeysQuery& query,
                                  size_t from_index, size_t count_max) {
  std::vector<SharedPlace> places;
  const size_t end = std::min(query.keys.size(), from_index + count_max);
  if (query.flags & protocol::kKeysFlat) {
    for (size_t i = from_index; i < end; ++i) {
      places.push_back({.key = query.keys[i], .run = query.keys[i]});
    }
    return places;
  }
  uint32_t position = query.first_position;  // of keys[0]
  BlockId before = kBlockNone;               // the block before keys[0]
  const BlockId first = index.Find(query.group_index, query.keys[0]);
  if (first != kBlockNone) {
    position = index.node(first).position;
    before = index.node(first).parent;
  } else if (!query.parent.is_zero()) {
    before = index.Find(query.group_index, query.parent);
    if (before != kBlockNone) position = index.node(before).position + 1;
  }
  BlockKey early_run;  // of keys[0], where that is not the first of its run
  for (uint32_t up = position % kRedisRunBlocks; up > 0 && before != kBlockNone; --up) {
    early_run = index.node(before).key;
    if (up > 1) before = index.node(before).parent;
  }
  for (size_t i = from_index; i < end; ++i) {
    const uint32_t own = position + static_cast<uint32_t>(i);
    const uint32_t back = own % kRedisRunBlocks;
    if (back > i && before == kBlockNone) break;
    places.push_back({.key = query.keys[i],
                      .run = back > i ? early_run : query.keys[i - back],
                      .position = own});
  }
  return places;
}

}  // namespace terrace
