// By what a shared tier finds blocks: where they stand in their chain, and under which key their
// run lies, as far as the index and a request can tell.
//
// Pure. THREADING: the store thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/block/keys_query.h"
#include "daemon/index/radix_index.h"
#include "terrace/block_key.h"

namespace terrace {

struct SharedPlace {
  BlockKey key;
  BlockKey run;
  uint32_t position = 0;  // in its run's chain
};

// The key that names the block's run. False if it is not known here.
bool FindRun(const RadixIndex& index, BlockId id, BlockKey* run);

// Of query.keys[from_index] and those behind it, at most `count_max`, as the request says. What
// cannot be named ends the list.
std::vector<SharedPlace> NameKeys(const RadixIndex& index, const KeysQuery& query,
                                  size_t from_index, size_t count_max);

}  // namespace terrace
