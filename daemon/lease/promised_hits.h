// PromisedHits: what the answer to an Acquire promised, and what of it came. A block is a hit once
// its client may read it; what leaves the lease before that, or is let go while it is still coming,
// is a miss of the cause kLate.
//
// THREADING: store thread. LIMITS: a span each time state or tier changes along a prompt.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "terrace/protocol.h"

namespace terrace {

class PromisedHits {
 public:
  PromisedHits() = default;  // of a request whose hits nobody counts: a Join, a Prefetch
  // recompute_ns_per_token: what the request said a miss costs; 0: nothing.
  PromisedHits(uint32_t group_index, uint32_t block_count, uint32_t recompute_ns_per_token,
               std::vector<protocol::BlockSpan> spans)
      : group_index_(group_index),
        block_count_(block_count),
        recompute_ns_per_token_(recompute_ns_per_token),
        spans_(std::move(spans)) {}

  // Blocks [0, end) may be read. All calls together look at each span once, and once more for each
  // call that ends within it.
  void Deliver(CacheDomain& domain, uint32_t end);
  void DeliverAll(CacheDomain& domain) { Deliver(domain, block_count_); }
  // Blocks from `from` on will not come.
  void Lose(CacheDomain& domain, uint32_t from);
  void LoseRest(CacheDomain& domain) { Lose(domain, delivered_count_); }

 private:
  uint32_t group_index_ = 0;
  uint32_t block_count_ = 0;      // promised, and not lost
  uint32_t delivered_count_ = 0;  // the first ones
  size_t next_span_ = 0;          // of spans_, the first with blocks that were not delivered
  uint32_t recompute_ns_per_token_ = 0;
  std::vector<protocol::BlockSpan> spans_;  // by first_block
};

}  // namespace terrace
