// Join of a lease whose slots do not fit one answer; docs/PROTOCOL.md tells how its pages are asked
// for. Who knows nothing of them sends a JoinRequest alone, and is answered as much as fits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "terrace/protocol.h"

namespace terrace::protocol {

// Of JoinRequest: the client asks for the pages that follow.
inline constexpr uint32_t kJoinPaged = 256;
// Of AcquireReply::flags, and in ReserveReply::reserved: this is a page, and others follow. Join
// again with a JoinPage.
inline constexpr uint32_t kJoinHasMore = 2;

// Behind the JoinRequest of any page but the first.
struct JoinPage {
  uint32_t first_block = 0;  // of a WriteLease: key; so many have been answered
  uint32_t reserved = 0;
};
static_assert(sizeof(JoinPage) == 8);

// Room in a reply for the spans of the longest lease, and its head.
inline constexpr size_t kJoinSlotBytesMax =
    kMessageBytesMax - kKeysPerRequestMax * sizeof(BlockSpan) - 4096;
static_assert(kJoinSlotBytesMax >= 64 * sizeof(SlotRef) + sizeof(ReservedKey));

// Blocks, or keys, whose slots one answer has.
constexpr uint32_t JoinPageBlocks(size_t member_count) {
  return static_cast<uint32_t>(kJoinSlotBytesMax / (member_count * sizeof(SlotAddress) + 1));
}
constexpr uint32_t JoinPageKeys(size_t member_count) {
  return static_cast<uint32_t>(kJoinSlotBytesMax /
                               (sizeof(ReservedKey) + member_count * sizeof(SlotRef)));
}

}  // namespace terrace::protocol
