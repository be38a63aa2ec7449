// Adoption: what a domain makes of the slots that a predecessor left in use. Its Sealed blocks are
// adopted as soon as their group is known, and verified before anybody gets them: at the first use,
// or in the background before that. Its writers' slots stay fenced.
//
// Processes that the predecessor served may still read or write any slot they were given, and only
// the predecessor knew which. So until all of them are dead or have said that they are done with
// its memory (`sessions`), no slot that was in use at the take-over is used for anything else.
//
// Blocks whose group is not there are parked: no index names them, so an erasure finds them here.
//
// THREADING: store thread. LIMITS: kInCheckMax blocks verified at once without being asked for;
// kRowsAtOpenMax rows when a group is opened, kRowsPerStepMax rows a Step().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/residency/residency.h"
#include "daemon/restore/restore_summaries.h"
#include "daemon/transfer/mover.h"
#include "tiers/left_blocks.h"

namespace terrace {

class Adoption {
 public:
  static constexpr uint32_t kInCheckMax = 32;
  static constexpr uint32_t kRowsPerStepMax = 128;
  static constexpr uint32_t kRowsAtOpenMax = 1024;

  Adoption(CacheDomain& domain, Residency& residency, Mover& mover)
      : d_(domain), residency_(residency), mover_(mover) {}

  // Takes over all rows in use; blocks of the groups there are become findable. `sessions` may
  // still touch them. Call once, before the first slot is taken.
  AdoptSummary Begin(std::span<const SessionId> sessions);
  // The group is there now: its first blocks are, too, the others follow in turns.
  void OnGroup(uint32_t group_index);
  // One of the sessions cannot touch memory any more.
  void OnSessionEnd(SessionId session);
  // Gives up some blocks whose group nobody has opened yet. Their slots are free when Step() has
  // come to them.
  void DropParked();

  // What is parked of a group (none: of any), from that position on, will not be adopted.
  // DropErased makes a successor forget it, too.
  void Erase(std::optional<uint64_t> group_tag, uint64_t position = 0);
  // Likewise what lies deeper in its group than the key, if that is parked: it may continue the
  // key, whose position this is then, else none.
  std::optional<uint64_t> EraseBelowKey(std::optional<uint64_t> group_tag, const BlockKey& key);
  // What is parked under the key is dropped at once.
  void EraseKey(std::optional<uint64_t> group_tag, const BlockKey& key, UnindexedTaken* taken);
  // As many slots as *budget says. True: nothing of what was erased is left.
  bool DropErased(uint32_t* budget, UnindexedTaken* taken);

  void Step();
  bool has_work() const;
  uint32_t parked_slot_count() const { return parked_count_; }

 private:
  // A Sealed slot whose block is not in the index yet.
  struct ParkedSlot {
    SlotRef slot;
    BlockKey key;
    uint64_t group_tag = 0;
    CommitId commit_id = 0;
    uint32_t position = 0;
    uint32_t member = 0;
    bool is_dropped = false;  // and so are the block's others

    // By group, parents before children, members of a block together.
    bool ComesBefore(const ParkedSlot& other) const;
    bool IsOfOneBlock(const ParkedSlot& other) const {
      return group_tag == other.group_tag && key == other.key && commit_id == other.commit_id;
    }
  };
  // Parked slots of one group: [next, end) of parked_, and [end, erased_end), which were erased.
  struct Range {
    uint64_t group_tag = 0;
    size_t next = 0;
    size_t end = 0;
    size_t erased_end = 0;
    uint32_t group_index = kAllGroups;  // kAllGroups: not open
  };
  struct Adopted {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
  };

  void Park(std::vector<ParkedSlot> slots);
  bool IsOpen(const Range& range) const;
  // Adopts up to `budget` slots' blocks of open groups. True if any are left.
  bool AdoptSome(size_t budget);
  void AdoptNext(Range* range);
  void Forsake(const SlotRef& slot);
  void SortByKey();
  void ForgetIfNone();
  void DropTail(Range* range, UnindexedTaken* taken);
  void DropOne(size_t parked_index, UnindexedTaken* taken);
  // Calls visit(range, index in parked_) for each slot that is parked under the key.
  template <typename Visit>
  void ForEachOf(std::optional<uint64_t> group_tag, const BlockKey& key, const Visit& visit);
  void VerifySome();
  void ReleaseSome(size_t budget);
  bool HasOpenRange() const;

  CacheDomain& d_;
  Residency& residency_;
  Mover& mover_;
  std::vector<SessionId> sessions_;
  std::vector<ParkedSlot> parked_;
  std::vector<Range> ranges_;     // by group_tag
  std::vector<uint32_t> by_key_;  // places in parked_ of what Begin has left there
  uint32_t parked_count_ = 0;
  std::vector<Adopted> adopted_;
  size_t verify_next_ = 0;         // of adopted_
  size_t release_next_ = 0;        // of adopted_, once sessions_ is empty
  std::vector<Adopted> in_check_;  // begun from here
  AdoptSummary summary_;
};

}  // namespace terrace
