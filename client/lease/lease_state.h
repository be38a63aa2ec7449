// LeaseState: what ReadLease and WriteLease share with the Client that gave them: where the slots
// are, how far they are readable or written, and whether the daemon still honours the lease.
//
// A lease ends once: by Release or Abort of the user, or, revoked, when no thread of this process
// is inside a copy of it any more. The end is the daemon's permission to reuse the slots, so it is
// sent after the last copy: a copy is counted before it looks at is_valid, and a revocation looks
// at the count after it cleared is_valid; one of the two sees the other.
//
// THREADING: fields are constant while a lease is out, or atomics, or guarded by the lock named.
// OWNERSHIP: shared by the handles and copies that use it; lent by a LeasePool. It keeps the Leases
// it belongs to, and with them all parts of its Client, until the last of them is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/arena/attachment.h"
#include "client/link/timed_lock.h"
#include "client/session/group.h"
#include "terrace/client.h"

namespace terrace {

namespace client {
// What whoever still uses a lease is answered once the daemon revoked it or went away.
inline constexpr Status kLeaseGone(StatusCode::kGone, "the lease is not valid any more");

class Leases;

// Whether a part may be written, and by whom.
enum class PartState : uint8_t {
  kOpen,
  kWriting,  // by one thread: it is not to be committed, nor written by another
  kSent,     // in a Commit that may have been sent: its bytes stay
};

// A part that was written and not yet committed.
struct WrittenPart {
  uint32_t key_index = 0;
  uint16_t member = 0;
  uint16_t part_index = 0;
  enum class Kind : uint8_t { kChecksummed, kUnchecked, kAbsent } kind = Kind::kChecksummed;
  Checksum checksum;
};
}  // namespace client

struct LeaseState {
  enum class Kind : uint8_t { kRead, kWrite };

  // ---- Constant from the daemon's answer until the last owner is gone ----
  std::shared_ptr<client::Leases> owner;
  std::shared_ptr<client::Attachment> attachment;
  const client::Group* group = nullptr;
  Kind kind = Kind::kRead;
  uint32_t connection = 0;  // number of the connection that gave it
  uint64_t request_id = 0;  // its completions come under this
  LeaseToken token;         // zero: a miss, known to nobody
  uint64_t member_mask = 0;
  bool is_by_parts = false;  // asked so: completions tell of parts of blocks that are coming, too
  bool has_more = false;     // of a Join: pages of it are still to be asked for
  uint32_t block_count = 0;  // of a WriteLease: keys
  uint32_t token_count = 0;
  std::vector<protocol::BlockSpan> spans;
  std::vector<SlotAddress> slots;  // read: block by block, members of the mask in order
  std::vector<BlockKey> keys;      // write: the Reserve's; empty for a joined lease
  std::vector<protocol::ReservedKey> reserved;
  std::vector<SlotRef> slot_refs;     // write: of reserved keys, members of the mask in order
  std::vector<uint32_t> first_slots;  // write: a key's first index into slot_refs
  std::vector<uint32_t> segments;     // retained in `attachment`

  // ---- Guarded by the LeaseRegistry ----
  LeaseState* next_registered = nullptr;
  bool is_registered = false;
  uint32_t ends_owed = 0;  // how often the token was given: by Acquire or Reserve, and by Joins
  std::vector<uint8_t> is_block_ready;

  // ---- Read anywhere ----
  std::atomic<bool> is_valid{false};
  std::atomic<bool> is_revoked{false};
  std::atomic<bool> is_end_wanted{false};  // the user called Release or Abort
  std::atomic<bool> is_end_sent{false};    // the daemon was told, or there is nothing to tell
  std::atomic<bool> has_raw_slots{false};  // a WriteLease's slot() was handed out
  std::atomic<bool> is_coming{false};      // completions are expected; see LeaseRegistry
  std::atomic<uint32_t> copy_count{0};     // threads inside a copy
  std::atomic<uint32_t> ready_count{0};
  std::atomic<uint32_t> staying_count{0};  // blocks that have not left the lease
  std::atomic<uint8_t> end_reason{0};
  std::atomic<uint32_t> parts_refused{0};  // by a lossy codec; the daemon is told with the next
                                           // Commit or Abort
  std::vector<uint64_t> readable_parts;    // two words a slot, by std::atomic_ref

  // ---- Guarded by write_lock ----
  client::TimedLock write_lock;
  std::vector<client::WrittenPart> written;
  std::vector<uint16_t> committed_parts;       // parts committed, by index into slot_refs
  std::vector<client::PartState> part_states;  // by index into slot_refs, parts_per_slot each
  uint32_t parts_per_slot = 0;                 // constant
  std::vector<uint8_t> is_copied_into;         // by a paged copy under way, by index into slot_refs

  uint32_t member_count() const;
  // Position of `member` in the mask; −1 if it is not there.
  int MemberOrdinal(uint32_t member) const;
  const client::GroupMember& member(uint32_t index) const { return group->members()[index]; }

  // The first byte of a slot; null if that member has no bytes there.
  std::byte* ReadSlot(uint32_t block_index, uint32_t member) const;
  // Whether this process's own threads can read that slot's bytes.
  bool IsHostReadable(uint32_t block_index, uint32_t member) const;
  std::byte* WriteSlot(uint32_t key_index, uint32_t member) const;
  bool is_reserved(uint32_t key_index) const;
  // Index into slot_refs. REQUIRES: is_reserved(key_index), the member is in the mask.
  uint32_t SlotIndex(uint32_t key_index, uint32_t member) const {
    return first_slots[key_index] + static_cast<uint32_t>(MemberOrdinal(member));
  }

  // Sizes what depends on the answer and marks what is ready at once, or is_coming. May throw
  // std::bad_alloc. kInvalid if a slot would pass the end of its segment.
  Status PrepareRead();
  Status PrepareWrite();

  // Progress. REQUIRES: the registry's lock.
  void BlocksReady(uint32_t first_block, uint32_t block_count);
  void PartsReadable(const protocol::Completion& completion);
  void BlocksLeft(uint32_t first_block);
  bool is_part_readable(uint32_t block_index, uint32_t member, uint32_t part_index) const;

  // Remembers a part that was written by others, or is absent. kNoSpace if memory is short; kExists
  // if it is committed already, or on its way; kBusy while a thread writes it, or a paged copy into
  // its slot is under way that is not `from_copy`'s.
  Status Remember(const client::WrittenPart& part, bool from_copy = false);
  // The calling thread alone writes the part, until EndPart or ForgetPart. Errors as Remember's.
  Status BeginPart(const client::WrittenPart& part);
  // It is written, and remembered; kNoSpace: it is not, and still the thread's.
  Status EndPart(const client::WrittenPart& part);
  // It is written in part at most: what was remembered of it before is not to be committed.
  void ForgetPart(const client::WrittenPart& part);
  // Whether the part goes into a Commit: from here on its bytes stay. What is being written does
  // not, nor what went into one before. REQUIRES: write_lock.
  bool SendPart(const client::WrittenPart& part);
  // The daemon has not taken it. REQUIRES: write_lock, SendPart.
  void ReturnPart(const client::WrittenPart& part);
  // A paged copy into these keys' slots begins: what was written of them before is not to be
  // committed. kExists if some of it is already, or is on its way; kBusy while a thread writes into
  // one, or another such copy is under way. REQUIRES: ascending, reserved; the member is in the
  // mask.
  Status Rewrite(std::span<const uint32_t> key_indexes, uint32_t member);
  // The copy that Rewrite began writes there no more.
  void EndRewrite(std::span<const uint32_t> key_indexes, uint32_t member);
  // In the order of keys, members, parts; of a part written twice the later stays.
  // REQUIRES: write_lock.
  void SortWritten();

  // Whether this process has committed every part it holds a slot for.
  // REQUIRES: write_lock, is_reserved(key_index).
  bool IsCommitted(uint32_t key_index) const;

  // Whether the daemon is to be told now; true once.
  bool TakeEnd();
  // Back to what a new one is, keeping the vectors' memory.
  void Clear();

  // Of a slot, or of what `part` names: an absent member's are all.
  std::span<client::PartState> PartStatesOf(uint32_t slot_index, uint32_t member_index) {
    return {&part_states[size_t{slot_index} * parts_per_slot], member(member_index).part_count()};
  }
  std::span<client::PartState> PartStatesOf(const client::WrittenPart& part);
  // REQUIRES, for both: write_lock.
  Status Push(const client::WrittenPart& part);
  void EndRewriteLocked(std::span<const uint32_t> key_indexes, uint32_t member);

  // Where the shared_ptr that owns this keeps its counts, so that handing out a lease allocates
  // nothing.
  static constexpr size_t kControlBlockBytes = 96;
  alignas(16) std::byte control_block[kControlBlockBytes];
  LeaseState* next_free = nullptr;  // guarded by the pool
};

}  // namespace terrace
