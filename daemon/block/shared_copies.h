// SharedCopies: which blocks the tier that hosts share has, as far as this host knows: what it gave
// there or fetched from there, and has not erased since. Nobody tells of what the tier drops, so
// each is believed for a time only; what it has of whatever blocks of before, none of which need be
// here any more, is known no longer once it has been away.
//
// THREADING: store thread. LIMITS: copies_max copies of 64 bytes, their deadlines beside them; of
// more, one that was noted early makes room.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "daemon/block/deadline_heap.h"
#include "terrace/block_key.h"

namespace terrace {

class SharedCopyObserver {
 public:
  virtual ~SharedCopyObserver() = default;
  virtual void OnSharedCopy(uint32_t copy) = 0;
  // The tier has it no more, or nobody knows. The last call in which the number is that copy's.
  virtual void OnSharedCopyGone(uint32_t copy) = 0;
};

// kFound: somebody had given it, nobody knows when.
enum class SharedOrigin : uint8_t { kGiven, kFound };

class SharedCopies {
 public:
  static constexpr uint32_t kCopiesMax = 1 << 17;
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr uint32_t kSweptPerTurn = 512;

  struct Name {
    GroupId group;
    BlockKey key;
  };
  struct Copy {
    BlockKey key;
    uint64_t group_low = 0;
    uint64_t event_hash = 0;   // as in BlockMeta
    uint64_t parent_hash = 0;  // of the block before it; 0: none
    uint32_t stream = 0;       // of KvEventSink
    uint32_t epoch = 0;
    uint32_t deadline = kHandleNone;
    uint32_t next = kNone;  // with the same place in the table, or free
    bool is_taken = false;
    bool is_told = false;  // routers know
  };
  static_assert(sizeof(Copy) <= 64, "a host of 131,072 shared blocks pays for each byte");

  // Of no copies if copies_max is 0.
  SharedCopies(uint32_t domain_index, uint32_t copies_max, DeadlineHeap& deadlines);
  // At most one.
  void SetObserver(SharedCopyObserver* observer) { observer_ = observer; }

  // The tier has it, until then at most; kNever: for ever.
  void Note(const Name& name, const Copy& told, uint64_t until_us);
  void Remove(const Name& name);
  // Of whatever group.
  void RemoveKey(const BlockKey& key);
  // From now on none of them counts; observers hear of it in the turns that follow.
  void RemoveGroup(const GroupId& group);
  void RemoveAll();
  // Its time has come.
  void OnDue(uint32_t copy);

  bool Has(const Name& name) const;
  bool has_work() const { return sweep_ != kNone; }
  void Step();
  // Something was noted since RemoveAll.
  bool has_some() const { return has_some_; }

  // Numbers of copies are below this one.
  uint32_t number_end() const { return static_cast<uint32_t>(copies_.size()); }
  // Null: the number is no copy's that counts.
  const Copy* at(uint32_t copy) const;
  // Also of one that counts no more. REQUIRES: in OnSharedCopyGone.
  const Copy& last(uint32_t copy) const { return copies_[copy]; }
  // REQUIRES: copy < number_end().
  void SetTold(uint32_t copy, bool is_told) { copies_[copy].is_told = is_told; }

 private:
  uint32_t& PlaceOf(const BlockKey& key) { return table_[key.low % table_.size()]; }
  // Also one that counts no more.
  uint32_t Find(const Name& name) const;
  bool Counts(const Copy& copy) const;
  uint32_t TakeNumber();
  void TakeOut(uint32_t copy);
  void BeginSweep() { sweep_ = copies_.empty() ? kNone : 0; }

  const uint32_t domain_index_;
  const uint32_t copies_max_;
  DeadlineHeap& deadlines_;
  SharedCopyObserver* observer_ = nullptr;
  std::vector<Copy> copies_;
  std::vector<uint32_t> table_;  // the first copy of each place
  uint32_t free_ = kNone;
  uint32_t hand_ = 0;  // who makes room next
  // Copies of an epoch up to these do not count.
  uint32_t epoch_ = 1;
  uint32_t all_gone_ = 0;
  std::unordered_map<uint64_t, uint32_t> groups_gone_;  // looked up only; none: no sweep
  uint32_t sweep_ = kNone;
  bool has_some_ = false;
};

}  // namespace terrace
