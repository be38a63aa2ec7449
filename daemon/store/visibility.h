// Visibility: what a reader may see of a block, where the rest of it comes from, and how much of
// that is worth waiting for. Asked for every block of a Match or Acquire, so most of it is inline.
//
// THREADING: the store thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/block/keys_query.h"
#include "daemon/store/prefix_walk.h"
#include "daemon/store/store_rooms.h"
#include "terrace/protocol.h"

namespace terrace {

enum class Visibility : uint8_t {
  kNothing,
  kReady,     // readable in DRAM
  kToVerify,  // likewise, as soon as its bytes have been compared with another user's checksums
  kFilling,   // a promotion is under way
  kBelow,     // in a lower tier, or in DRAM and not verified yet
  kReserved,  // being written
  kOnDevice,  // readable in the memory of the caller's device
};

// How far a caller can see a block.
inline Visibility VisibilityOf(const Caller& caller, BlockId id) {
  const DomainRooms& rooms = *caller.rooms;
  if (rooms.residency.candidates.IsExpired(id)) return Visibility::kNothing;
  const Block& b = rooms.domain.block(id);
  if (b.phase == BlockPhase::kReserved) return Visibility::kReserved;
  if (b.dram.is_readable()) {
    return b.IsReadableFor(caller.uid) ? Visibility::kReady : Visibility::kToVerify;
  }
  if (b.dram.state == CopyState::kFilling) return Visibility::kFilling;
  if (b.dram.state == CopyState::kUnverified) return Visibility::kBelow;
  return rooms.domain.FastestTier(b) == kLowerTiersMax ? Visibility::kNothing : Visibility::kBelow;
}

// Members with bytes in the copy that a reader would get.
inline uint64_t MembersOf(const CacheDomain& domain, const Block& block) {
  if (block.phase == BlockPhase::kReserved) return ~uint64_t{0};  // whatever its writer brings
  if (block.dram.state != CopyState::kNone) return block.dram.member_mask;
  const uint32_t tier = domain.FastestTier(block);
  return tier == kLowerTiersMax ? 0 : block.lower[tier].member_mask;
}

// Likewise of a reader that may be answered on the device.
inline uint64_t MembersSeen(const CacheDomain& domain, const Block& block, Visibility found) {
  return found == Visibility::kOnDevice ? block.lower[domain.device_tier].member_mask
                                        : MembersOf(domain, block);
}

// Where a block that is kFilling, kBelow or kToVerify comes from, and when: behind what its tier
// has in flight, what was asked for before it and waits, and the request's blocks so far.
struct Coming {
  protocol::TierKind tier = protocol::TierKind::kDram;
  uint32_t eta_us = 0;
};
Coming ComingFrom(const DomainRooms& rooms, BlockId id, UnqueuedBytes* unqueued);

// How many of the next blocks of an Acquire's prefix, as they were `found`, to promise; `walk` is
// what came before them. An engine that loads k blocks has its answer after the wait for the k-th
// and the time that computing the rest takes: the k for which that comes first. Only what a request
// itself says of its costs counts: who says nothing may have no engine at all. Whoever asks, what
// cannot be there within `left_us`, when the request's time is up, is not promised.
size_t WorthLoading(const Caller& caller, const KeysQuery& query, const PrefixWalk& walk,
                    uint64_t left_us, std::span<const BlockId> held,
                    std::span<const Visibility> found);

// Where the members of `member_mask` lie on the device. REQUIRES: CacheDomain::IsOnDevice.
void AppendDeviceSlots(const Group& group, const CacheDomain& domain, const Block& block,
                       uint64_t member_mask, std::vector<SlotAddress>* slots);

}  // namespace terrace
