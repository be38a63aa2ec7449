#include "daemon/store/visibility.h"

#include <algorithm>

namespace terrace {

// What one offload thread compares; only an estimate for those who wait.
static constexpr uint64_t kVerifyBytesPerUs = 4096;

Coming ComingFrom(const DomainRooms& rooms, BlockId id, uint64_t ahead_bytes) {
  const Block& b = rooms.domain.block(id);
  const uint64_t bytes = ahead_bytes + rooms.domain.group_of(b).block_bytes();
  const auto capped = [](uint64_t eta_us) {
    return static_cast<uint32_t>(std::min<uint64_t>(eta_us, UINT32_MAX));
  };
  if (b.dram.is_readable() || b.dram.state == CopyState::kUnverified || b.is_adopting()) {
    return {.tier = protocol::TierKind::kDram, .eta_us = capped(bytes / kVerifyBytesPerUs)};
  }
  if (b.is_arriving() || b.is_expected()) {
    return {.tier = protocol::TierKind::kRedis,
            .eta_us = capped(rooms.domain.options.shared.tier->PredictReadUs(bytes))};
  }
  const uint32_t tier =
      b.dram.state == CopyState::kFilling ? b.fill_tier : rooms.domain.FastestTier(b);
  const Tier& from = *rooms.domain.lower[tier].tier;
  return {.tier = from.kind(), .eta_us = capped(from.PredictReadUs(bytes))};
}

uint64_t ComputeUs(const Group& group, const KeysQuery& query, uint64_t block_count) {
  const uint64_t ns_per_token = query.hints.recompute_ns_per_token != 0
                                    ? query.hints.recompute_ns_per_token
                                    : group.recompute_ns_per_token;
  return ns_per_token == 0 ? kNever : block_count * group.block_tokens() * ns_per_token / 1000;
}

void AppendDeviceSlots(const Group& group, const CacheDomain& domain, const Block& block,
                       uint64_t member_mask, std::vector<SlotAddress>* slots) {
  const BlockCopy& copy = block.lower[domain.device_tier];
  const std::span<const Extent> extents = domain.group_of(block).extents().at(copy.row);
  const std::span<const LocalMember> locals = group.locals();
  for (size_t i = 0; i < locals.size(); ++i) {
    if (!((member_mask >> locals[i].member) & 1)) continue;
    const bool has_bytes = (copy.member_mask >> locals[i].member) & 1;
    slots->push_back(has_bytes ? HbmTier::AddressOf(extents[i]) : SlotAddress{});
  }
}

}  // namespace terrace
