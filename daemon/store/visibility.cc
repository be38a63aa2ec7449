#include "daemon/store/visibility.h"

#include <algorithm>

namespace terrace {

// What one offload thread compares; only an estimate for those who wait.
static constexpr uint64_t kVerifyBytesPerUs = 4096;

namespace {

uint32_t Capped(uint64_t eta_us) {
  return static_cast<uint32_t>(std::min<uint64_t>(eta_us, UINT32_MAX));
}

uint64_t& OfTier(UnqueuedBytes* unqueued, protocol::TierKind tier) {
  return (*unqueued)[static_cast<size_t>(tier)];
}

bool HasToCome(Visibility found) {
  return found == Visibility::kBelow || found == Visibility::kFilling;
}

}  // namespace

Coming ComingFrom(const DomainRooms& rooms, BlockId id, UnqueuedBytes* unqueued) {
  using protocol::TierKind;
  const CacheDomain& domain = rooms.domain;
  const Block& b = domain.block(id);
  Group& group = domain.group_of(b);
  if (b.dram.is_readable() || b.dram.state == CopyState::kUnverified || b.is_adopting()) {
    uint64_t& bytes = OfTier(unqueued, TierKind::kDram);
    bytes += group.BytesOf(b.dram.member_mask);
    return {.tier = TierKind::kDram, .eta_us = Capped(bytes / kVerifyBytesPerUs)};
  }
  if (b.is_arriving() || b.is_expected()) {
    uint64_t bytes = 0;
    if (b.is_arriving()) {
      bytes = rooms.shared_reader.WaitingBytesTo(id);
    } else {
      bytes = OfTier(unqueued, TierKind::kRedis) += group.block_bytes();
      bytes += rooms.shared_reader.waiting_bytes();
    }
    return {.tier = TierKind::kRedis,
            .eta_us = Capped(domain.options.shared.tier->PredictReadUs(bytes))};
  }
  const bool is_filling = b.dram.state == CopyState::kFilling;
  const uint32_t tier = is_filling ? b.fill_tier : domain.FastestTier(b);
  const Tier& from = *domain.lower[tier].tier;
  uint64_t bytes = 0;
  if (is_filling) {
    bytes = rooms.mover.promotions().WaitingBytesTo(id);
  } else {
    bytes = OfTier(unqueued, from.kind()) += group.BytesOf(b.lower[tier].member_mask);
    bytes += rooms.mover.promotions().waiting_bytes(tier);
  }
  const uint32_t row = b.lower[tier].row;
  const uint64_t silent_us = row == kRowNone ? 0 : from.SilentUs(group.extents().at(row));
  return {.tier = from.kind(), .eta_us = Capped(std::max(from.PredictReadUs(bytes), silent_us))};
}

// Compared is what is saved: computing to the end of a usable prefix, less the wait beyond what was
// promised before. Example: 100 µs a block, 4 blocks of a drive after 300 µs, 4 more of another
// host after 800 µs: 4 blocks save 400 − 300, 8 save 800 − 800, so 4 are promised.
size_t WorthLoading(const Caller& caller, const KeysQuery& query, const PrefixWalk& walk,
                    uint64_t left_us, std::span<const BlockId> held,
                    std::span<const Visibility> found) {
  const uint64_t ns_per_token = query.hints.recompute_ns_per_token;
  const auto first = static_cast<size_t>(std::ranges::find_if(found, HasToCome) - found.begin());
  if (first == found.size()) return held.size();
  const CacheDomain& domain = caller.domain();
  PrefixWalk walked = walk.Onwards();
  uint32_t usable_before = walk.usable_count;
  size_t best = first;
  int64_t most_saved_us = 0;
  size_t i = 0;
  bool is_late = false;
  for (; i < held.size(); ++i) {
    const uint64_t members = MembersSeen(domain, domain.block(held[i]), found[i]);
    if (!WalkOn(*caller.group, members, &walked)) break;
    if (i < first) {
      usable_before = walked.usable_count;
      continue;
    }
    if (HasToCome(found[i])) {
      const Coming coming = ComingFrom(*caller.rooms, held[i], &walked.unqueued);
      walked.wait_us = std::max(walked.wait_us, coming.eta_us);
      is_late = coming.eta_us > left_us;
      if (is_late) break;
    }
    if (ns_per_token == 0) {
      best = i + 1;
      continue;
    }
    const uint64_t tokens =
        uint64_t{walked.usable_count - usable_before} * caller.group->block_tokens();
    const auto saved_us = static_cast<int64_t>(tokens * ns_per_token / 1000) -
                          static_cast<int64_t>(walked.wait_us - walk.wait_us);
    if (saved_us < most_saved_us) continue;
    most_saved_us = saved_us;
    best = i + 1;
  }
  return best >= i && !is_late ? held.size() : best;
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
