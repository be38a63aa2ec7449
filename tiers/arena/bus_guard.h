// BusGuard: a page of an arena that cannot be had costs the blocks on it, not the process.
//
// Clients have the arena's memfd, and may punch holes in it. A hole in ordinary shared memory is
// filled with zeros when somebody looks; one in huge pages is, too, while the pool has a page left,
// and is SIGBUS for whoever touches it when the pool has none. So is memory that the machine finds
// broken. The handler puts an empty private page in the place of such a one, and the access goes
// on: what is read there fails its checksum. Restore puts the memfd's page back, once there is one.
//
// A SIGBUS anywhere else ends the process as it always did.
//
// THREADING: any thread. LIMITS: kGuardedRangesMax mappings, kLostPagesMax lost pages at a time;
// more stay private to the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

inline constexpr uint32_t kGuardedRangesMax = 1024;
inline constexpr uint32_t kLostPagesMax = 1024;

// From here on a SIGBUS in this shared mapping is survived. False: there are kGuardedRangesMax.
bool GuardFromBus(std::byte* base, uint64_t length_bytes, uint64_t page_bytes);
// REQUIRES: nobody touches the mapping.
void EndGuard(std::byte* base);

// Pages lost since the start of the process.
uint64_t LostPageCount();
// Some pages are private at the moment, in any mapping.
bool HasLostPages();
// Some of [bytes, bytes + length_bytes) are: what this process reads there is not what others have.
// Also true when more than kLostPagesMax were lost, of whatever is guarded.
bool HasLostPageIn(const std::byte* bytes, uint64_t length_bytes);
// Maps `fd` from `offset_bytes` on anew where pages of [base, base + length_bytes) were lost and
// can be had again.
void RestoreLostPages(std::byte* base, uint64_t length_bytes, int fd, uint64_t offset_bytes);
// The same whether they can be had or not: before the range is populated.
void RemapLostPages(std::byte* base, uint64_t length_bytes, int fd, uint64_t offset_bytes);

}  // namespace terrace
