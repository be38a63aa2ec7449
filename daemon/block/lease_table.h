// LeaseTable: the leases of one domain, by token. A lease names blocks and the sessions that joined
// it; what holding and letting go mean for a block is the LeaseKeeper's business.
//
// Building (an Acquire or Reserve still goes on) → Live → Ending (nobody is left: its blocks are
// let go, some a turn) → gone; or Live → Revoked (commits are void, slots fenced) → Ending once
// every joiner has acknowledged or is dead.
//
// THREADING: one thread. LIMITS: the caller bounds leases and blocks per session.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "daemon/block/block.h"
#include "terrace/block_key.h"

namespace terrace {

using LeaseId = uint32_t;
using SessionIndex = uint32_t;  // a session's place in the Store's table
inline constexpr LeaseId kLeaseNone = 0xFFFFFFFF;
inline constexpr SessionIndex kSessionNone = 0xFFFFFFFF;

enum class LeaseKind : uint8_t { kRead, kWrite, kPrefetch };
enum class LeasePhase : uint8_t { kUnused, kBuilding, kLive, kRevoked, kEnding };

struct Joiner {
  SessionIndex session = kSessionNone;
  bool is_hung_up = false;  // its connection ended; it may still touch slots
};

// Of one block in a lease.
inline constexpr uint8_t kEntryByParts = 1;   // parts of it, or it before its prefix, were told
inline constexpr uint8_t kEntryFenced = 2;    // counted in the block's fence_count
inline constexpr uint8_t kEntryOnDevice = 4;  // answered where it lies in the device's memory

inline constexpr uint32_t kEntryNone = 0xFFFFFFFF;

struct LeaseEntry {
  BlockId block = kBlockNone;  // write: none once it is sealed or aborted
  uint8_t flags = 0;
};

// Entries that left the end of a lease's prefix together, not yet let go or left behind.
struct CutTail {
  uint32_t lease = 0;
  std::vector<LeaseEntry> entries;
};

struct Lease {
  LeaseToken token;
  LeaseKind kind = LeaseKind::kRead;
  LeasePhase phase = LeasePhase::kUnused;
  uint32_t group_index = 0;
  uint32_t stamp = 0;                 // distinguishes uses of one id
  SessionIndex owner = kSessionNone;  // whose limits it counts against
  uint32_t owner_stamp = 0;
  std::vector<Joiner> joiners;
  // Read: the prefix in order. Write: one a block that was reserved; a key that was not leaves
  // nothing here, so that a lease costs no more than what its blocks pay for with slots.
  std::vector<LeaseEntry> entries;
  // Left the prefix, but a reader may still be looking at parts of them: held to the end.
  std::vector<LeaseEntry> left_behind;
  uint32_t key_count = 0;             // write: of the Reserve
  std::vector<uint32_t> key_indexes;  // write: per entry its key's place in the Reserve, ascending
  // Write: per entry a row of Group::part_words() words; bit set: part committed.
  std::vector<uint64_t> part_bits;
  std::vector<uint64_t> absent_masks;  // write: per entry, members committed absent
  uint32_t revoked_count = 0;          // entries that the revocation has dealt with,
  uint32_t revoked_behind_count = 0;   // and of those left behind
  uint32_t charged_count = 0;          // entries ever, counted against owner and domain
  bool is_unnoted = false;             // DeferredHits: it ends when what it hit has been noted
  uint64_t created_us = 0;
  BlockKey tip;  // the last block: why its request ended says something about it

  // Write: the entry of a key of the Reserve; kEntryNone if it was not reserved.
  uint32_t EntryOf(uint32_t key_index) const;
};

// Something about leases that is done some blocks a turn; see LeaseKeeper::Step.
enum class LeaseWorkKind : uint8_t { kEnd, kRevoke, kSession };
struct LeaseWork {
  LeaseWorkKind kind = LeaseWorkKind::kEnd;
  uint32_t id = 0;  // of the lease, or index of the session
  uint32_t stamp = 0;
};

class LeaseTable {
 public:
  // REQUIRES: `token` is not zero and not in use (128 random bits), or the kind is kPrefetch.
  LeaseId Open(LeaseKind kind, const LeaseToken& token, uint32_t group_index);
  // Frees the id. REQUIRES: no entries and no joiners.
  void Close(LeaseId id);
  // The token names nothing any more; the lease lives on until Close.
  void Forget(LeaseId id);

  LeaseId Find(const LeaseToken& token) const;
  Lease& at(LeaseId id) { return leases_[id]; }
  const Lease& at(LeaseId id) const { return leases_[id]; }
  // Ids below this have been in use.
  uint32_t id_count() const { return static_cast<uint32_t>(leases_.size()); }
  uint32_t count() const { return count_; }

 private:
  std::deque<Lease> leases_;  // never moves a lease
  std::vector<LeaseId> free_ids_;
  std::unordered_map<LeaseToken, LeaseId> by_token_;  // looked up only, never walked
  uint32_t count_ = 0;
};

}  // namespace terrace
