// LeaseTable: the leases of one domain, by token. A lease names blocks and the sessions that joined
// it; what holding and letting go mean for a block is the LeaseManager's business. Rows are read by
// everybody and change in the table's methods only; a Reserve's marks in their own.
//
// Building (an Acquire or Reserve still goes on) → Live → Ending (nobody is left: its blocks are
// let go, some a turn) → gone; or Live → Revoked (commits are void, slots fenced) → Ending once
// every joiner has acknowledged or is dead.
//
// THREADING: one thread. LIMITS: the caller bounds leases and blocks per session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/block/block.h"
#include "daemon/block/commit_marks.h"
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

// Flags of one block in a lease.
inline constexpr uint8_t kEntryByParts = 1;   // parts of it, or it before its prefix, were told
inline constexpr uint8_t kEntryFenced = 2;    // counted in the block's fence_count
inline constexpr uint8_t kEntryOnDevice = 4;  // answered where it lies in the device's memory
inline constexpr uint8_t kEntrySealed = 8;  // write: sealed, and held: other joiners may write yet

struct LeaseEntry {
  BlockId block = kBlockNone;  // write: none once its only joiner has sealed or aborted it
  uint8_t flags = 0;
};

// What was taken off the end of a list of entries: `last`, and those before it that are of its
// path, as far as their ids follow each other.
struct LastEntries {
  LeaseEntry last;
  BlockRange path;  // with `last`
};

// Entries that left the end of a lease's prefix together, not yet let go or left behind.
struct CutTail {
  uint32_t lease = 0;
  bool stays = false;  // all of it is left behind
  std::vector<LeaseEntry> entries;

  // Costs 1 an entry. REQUIRES: there are entries, *budget > 0.
  LastEntries PopLast(uint32_t* budget);
};

// Everybody reads; only the LeaseTable changes what is in it.
struct Lease {
  LeaseToken token;
  LeaseKind kind = LeaseKind::kRead;
  LeasePhase phase = LeasePhase::kUnused;
  uint32_t group_index = 0;
  uint32_t stamp = 0;                 // distinguishes uses of one id
  SessionIndex owner = kSessionNone;  // whose limits it counts against
  uint32_t owner_stamp = 0;
  std::vector<Joiner> joiners;
  // Read: the prefix in order. Write: one a block that was reserved.
  std::vector<LeaseEntry> entries;
  // Left the prefix, but a reader may still be looking at parts of them: held to the end.
  std::vector<LeaseEntry> left_behind;
  // Write: of members that a sealed block lacks. Another joiner may have been told of them.
  std::vector<SlotRef> slots_kept;
  CommitMarks marks;                  // write: keys and commits, by entry
  uint32_t revoked_count = 0;         // entries that the revocation has dealt with,
  uint32_t revoked_behind_count = 0;  // and of those left behind
  uint32_t charged_count = 0;         // entries ever, counted against owner and domain
  bool is_unnoted = false;            // DeferredHits: it ends when what it hit has been noted
  bool is_told_again = false;         // one joiner has had several answers about it
  uint64_t created_us = 0;
  BlockKey tip;  // the last block: why its request ended says something about it

  // It was revoked, and the revocation has not dealt with all of it.
  bool is_to_revoke() const {
    return phase == LeasePhase::kRevoked &&
           (revoked_behind_count < left_behind.size() || revoked_count < entries.size());
  }
};

// Something about leases that is done some blocks a turn; see LeaseManager::Step.
enum class LeaseWorkKind : uint8_t { kEnd, kRevoke, kSession };
struct LeaseWork {
  LeaseWorkKind kind = LeaseWorkKind::kEnd;
  uint32_t id = 0;  // of the lease, or index of the session
  uint32_t stamp = 0;
};

// What is left to do about leases, in the order in which it came: tails are sorted before anything
// else is done to their leases, then single entries are let go, then there is other work.
class LeaseBacklog {
 public:
  void Add(CutTail tail) { tails_.push_back(std::move(tail)); }
  void Add(const LeaseEntry& entry) { entries_.push_back(entry); }
  void Add(const LeaseWork& work) { work_.push_back(work); }

  bool is_empty() const { return tails_.empty() && entries_.empty() && work_.empty(); }
  // Entries that no lease has any more, still held; and others, many at once.
  const std::deque<LeaseEntry>& entries() const { return entries_; }
  const std::deque<CutTail>& tails() const { return tails_; }

  // REQUIRES, of all: there is one.
  CutTail& first_tail() { return tails_.front(); }
  const LeaseWork& first_work() const { return work_.front(); }
  void EndTail() { tails_.pop_front(); }
  void EndWork() { work_.pop_front(); }
  LeaseEntry TakeEntry() {
    const LeaseEntry entry = entries_.front();
    entries_.pop_front();
    return entry;
  }

 private:
  std::deque<CutTail> tails_;
  std::deque<LeaseEntry> entries_;
  std::deque<LeaseWork> work_;
};

struct NewLease {
  LeaseKind kind = LeaseKind::kRead;
  LeaseToken token;
  uint32_t group_index = 0;
  uint32_t part_words = 0;  // write: the group's
  SessionIndex owner = kSessionNone;
  uint32_t owner_stamp = 0;
  uint64_t created_us = 0;
};

class LeaseTable {
 public:
  // Building. REQUIRES: the token is not zero and not in use (128 random bits), or the kind is
  // kPrefetch.
  LeaseId Open(const NewLease& lease);
  // Frees the id. REQUIRES: no entries and no joiners.
  void Close(LeaseId id);

  LeaseId Find(const LeaseToken& token) const;
  const Lease& at(LeaseId id) const { return leases_[id]; }
  // Ids below this have been in use.
  uint32_t id_count() const { return static_cast<uint32_t>(leases_.size()); }
  uint32_t count() const { return count_; }

  // Building → Live; memory that was kept for more is given back. REQUIRES: Building.
  void GoLive(LeaseId id);
  // Building or Live → Revoked. False if it was neither.
  bool Revoke(LeaseId id);
  // → Ending: the token names nothing any more. REQUIRES: no joiners.
  void BeginEnd(LeaseId id);
  // While its hits are to be noted it stays, though it may be Ending before.
  enum class Hits : uint8_t { kToNote, kNoted };
  void SetHits(LeaseId id, Hits hits) { leases_[id].is_unnoted = hits == Hits::kToNote; }

  // REQUIRES: not a joiner yet.
  void Join(LeaseId id, SessionIndex session);
  // A joiner of before is told of it once more.
  void TellAgain(LeaseId id) { leases_[id].is_told_again = true; }
  // REQUIRES: a joiner.
  void RemoveJoiner(LeaseId id, SessionIndex session);

  // Room at once for so many entries.
  void MakeRoom(LeaseId id, size_t entry_count);
  // Blocks at the end, in order. They are charged to the lease.
  void Append(LeaseId id, const LeaseEntry& entry);
  void AppendPath(LeaseId id, BlockRange range);
  void AppendPath(LeaseId id, std::span<const BlockId> run);
  // Write: one more key has been answered. REQUIRES: if it was reserved, its entry was appended.
  void AddKey(LeaseId id) { leases_[id].marks.AddKey(leases_[id].entries.size()); }
  // Its last key, which names its last block.
  void SetTip(LeaseId id, const BlockKey& tip) { leases_[id].tip = tip; }

  // Sets a flag of an entry. False if it was set, or the entry has no block any more.
  bool Flag(LeaseId id, uint32_t entry, uint8_t flag);
  // The entry has no block from now on. What it was.
  LeaseEntry Take(LeaseId id, uint32_t entry);
  // Write: slots of no block any more stay taken to the end of the lease. They leave the last
  // first; REQUIRES: there is one.
  void KeepSlots(LeaseId id, std::span<const SlotRef> slots);
  SlotRef TakeSlot(LeaseId id);
  // Write: what is committed of the entries.
  CommitMarks& marks(LeaseId id) { return leases_[id].marks; }

  // Fences the next entry that the revocation has not dealt with. Whether it was not fenced before,
  // and what it is. REQUIRES: is_to_revoke().
  struct Revoked {
    LeaseEntry entry;
    bool is_fenced_now = false;
  };
  Revoked RevokeNext(LeaseId id);
  // Takes the entries from there on off the prefix.
  CutTail Cut(LeaseId id, uint32_t from_entry);
  // An entry of a tail that was cut off stays to the end of the lease.
  void LeaveBehind(LeaseId id, const LeaseEntry& entry);
  // Takes from the end of the prefix, then of what was left behind; of a read lease a path at once.
  // Costs 1 an entry. REQUIRES: there are entries, *budget > 0.
  LastEntries PopLast(LeaseId id, uint32_t* budget);

 private:
  static constexpr size_t kSpareEntriesMax = 64;

  void Forget(LeaseId id);

  std::deque<Lease> leases_;  // never moves a lease
  std::vector<LeaseId> free_ids_;
  std::unordered_map<LeaseToken, LeaseId> by_token_;  // looked up only, never walked
  uint32_t count_ = 0;
};

}  // namespace terrace
