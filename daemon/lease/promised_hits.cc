#include "daemon/lease/promised_hits.h"

#include <algorithm>

#include "terrace/check.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

using protocol::HitRateCounts;
using protocol::MissCause;

void PromisedHits::Deliver(CacheDomain& domain, uint32_t end) {
  TERRACE_CHECK(delivered_count_ <= block_count_, "what was delivered is not lost afterwards");
  end = std::min(end, block_count_);
  if (end <= delivered_count_) return;
  const Group& group = *domain.groups[group_index_];
  HitRateCounts counts;
  for (size_t i = next_span_; i < spans_.size() && spans_[i].first_block < end; ++i) {
    const protocol::BlockSpan& span = spans_[i];
    if (span.first_block + span.block_count <= end) next_span_ = i + 1;
    const uint32_t first = std::max(span.first_block, delivered_count_);
    const uint32_t span_end = std::min(span.first_block + span.block_count, end);
    if (first >= span_end) continue;
    const auto tier = static_cast<size_t>(span.tier);
    const uint64_t block_count = span_end - first;
    counts.blocks_hit[tier] += block_count;
    domain.counters.acquire_tokens_by_tier[tier] += block_count * group.block_tokens();
    domain.counters.acquire_bytes_by_tier[tier] += block_count * group.block_bytes();
  }
  const uint64_t hit_count = end - delivered_count_;
  // A long prompt's tokens cost more than a short one's; who says nothing has the last one's word.
  const uint64_t ns_per_token =
      recompute_ns_per_token_ != 0 ? recompute_ns_per_token_ : group.recompute_ns_per_token;
  counts.saved_us = hit_count * group.block_tokens() * ns_per_token / 1000;
  domain.meter.OnAnswered(group_index_, counts, domain.NowUs());
  delivered_count_ = end;
}

void PromisedHits::Lose(CacheDomain& domain, uint32_t from) {
  from = std::max(from, delivered_count_);
  if (from >= block_count_) return;
  HitRateCounts counts;
  counts.blocks_missed[static_cast<size_t>(MissCause::kLate)] = block_count_ - from;
  domain.counters.acquire_blocks_lost += block_count_ - from;
  domain.meter.OnAnswered(group_index_, counts, domain.NowUs());
  block_count_ = from;
}

}  // namespace terrace
