#include "daemon/store/acquire_misses.h"

#include <algorithm>

#include "terrace/protocol_introspection.h"

namespace terrace {

using protocol::HitRateCounts;
using protocol::MissCause;

namespace {

MissCause CauseOf(const Caller& caller, uint32_t group_index, const BlockKey& key) {
  const DomainRooms& rooms = *caller.rooms;
  const BlockId id = rooms.domain.index.Find(group_index, key);
  if (id == kBlockNone) {
    const ForgottenKeys::Entry* const forgotten = rooms.domain.forgotten.Find(group_index, key);
    return forgotten == nullptr ? MissCause::kCold : forgotten->cause;
  }
  if (rooms.residency.candidates.IsExpired(id)) return MissCause::kExpired;
  return MissCause::kLate;
}

}  // namespace

// The first key that is not there says why; what nobody ever saw behind it is cold.
void CountMisses(const Caller& caller, const KeysQuery& query, std::span<const BlockKey> missed,
                 AcquireMisses* misses) {
  if (missed.empty()) return;
  const CacheDomain& domain = caller.domain();
  misses->cause = CauseOf(caller, query.group_index, missed.front());
  // Where a key was never seen, none behind it was.
  const auto is_seen = [&](const BlockKey& key) {
    return domain.forgotten.Find(query.group_index, key) != nullptr ||
           domain.index.Find(query.group_index, key) != kBlockNone;
  };
  const auto border = std::partition_point(missed.begin(), missed.end(), is_seen);
  misses->cold_count = static_cast<uint32_t>(missed.end() - border);
  misses->is_rest_cold = border != missed.end();
}

void CountAnswer(const Caller& caller, const KeysQuery& query, const AcquireResult& result) {
  const uint32_t asked_count = std::max(query.key_count_of_request, result.misses.asked_count);
  const uint32_t hit_count = result.reply.block_count;
  HitRateCounts counts{.requests = 1, .blocks_asked = asked_count};
  const uint32_t missed_count = asked_count - std::min(asked_count, hit_count);
  const AcquireMisses& misses = result.misses;
  const uint32_t unwalked_count = asked_count - misses.asked_count;
  const uint32_t cold_count =
      std::min(missed_count, misses.cold_count + (misses.is_rest_cold ? unwalked_count : 0));
  counts.blocks_missed[static_cast<size_t>(MissCause::kCold)] += cold_count;
  // Walked, but not usable: a windowed member's bytes, or fewer than the client has use for.
  const MissCause cause = misses.cause.value_or(MissCause::kMismatch);
  counts.blocks_missed[static_cast<size_t>(cause)] += missed_count - cold_count;
  caller.domain().counters.acquire_tokens_asked +=
      uint64_t{asked_count} * caller.group->block_tokens();
  caller.domain().meter.OnAnswered(query.group_index, counts, caller.domain().NowUs());
}

}  // namespace terrace
