// OwedErasures: blocks that were erased here and that a Redis server may have yet. None of it is
// believed: a block is owed under a name until the server has erased it under that name.
//
// A block is erased *by name*, and is forgotten here once the server has erased that; or *by key*,
// where nobody here knows its name: it is owed under whatever name is asked for, and erased under
// each that becomes known, until nothing of before can be on a server any more. Of a key that was
// erased in *any group* the same holds in groups that are not known here yet.
//
// What is to be kept for a successor is asked for as a whole; an erasure is *safe* once the server
// has done it or a successor would know of it.
//
// Pure. THREADING: one thread. LIMITS: kBlocksMax blocks, kInAnyGroupMax keys in any group among
// them, kNamesMax names; of stores whose end is not known the last kLostMax.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/units.h"
#include "tiers/shared_name.h"

namespace terrace {

// What a successor has to know: that nothing of this block is to be believed until then.
struct KeptErasure {
  GroupId group;         // zero: any
  BlockKey key;          // zero, of any group: all that nobody has named
  uint64_t until_s = 0;  // Unix; 0: it was stored anew since it was erased in any group

  friend bool operator==(const KeptErasure&, const KeptErasure&) = default;
};

class OwedErasures {
 public:
  static constexpr size_t kBlocksMax = 16 * 1024;
  static constexpr size_t kInAnyGroupMax = 4 * 1024;
  static constexpr size_t kNamesMax = 64 * 1024;
  // Of these so many because they were asked for: who asks for names that he makes up must not have
  // a group forgotten.
  static constexpr size_t kNamesAskedMax = kNamesMax / 2;
  static constexpr size_t kNamesOfBlockMax = 256;  // of these, as they are looked through
  static constexpr size_t kLostMax = 1024;
  // A command that was on its way when its connection was given up has come by then, or never will,
  // once the server has answered another one.
  static constexpr uint64_t kSettleUs = kUsPerSecond;
  static constexpr uint64_t kRetryUs = kUsPerSecond / 10;
  // What the server has not answered for so long is kept for a successor.
  static constexpr uint64_t kPatienceUs = kUsPerSecond / 4;

  enum class Scope : uint8_t { kName, kKey };
  // Of what the server was told: by then nothing of before is on it under a name that nobody has
  // asked for. What it was not told of is owed until it is, and kept for as long as any host lets
  // a block stay there.
  struct Times {
    uint64_t now_us = 0;
    uint64_t until_us = 0;
    uint64_t until_s = 0;         // likewise, Unix
    uint64_t until_s_untold = 0;  // what a successor is told of it until then
  };

  // False: there is no room. With kKey `run` and `position` of the name are a guess.
  bool Add(const RedisBlockName& name, Scope scope, const Times& times);
  // So many of the keys are not owed in any group yet.
  size_t CountNewInAnyGroup(std::span<const BlockKey> keys) const;
  size_t in_any_group_count() const { return in_any_group_count_; }
  // False: there is no room. REQUIRES: of keys in any group there are fewer than kInAnyGroupMax, or
  // this one is among them, or is zero: everything of groups that nobody has named.
  bool AddInAnyGroup(const BlockKey& key, const Times& times);
  bool has_all_in_any_group() const { return FindInAnyGroup({}) != nullptr; }
  // Of a predecessor. What is beyond the limit is left out. What is of any group comes first.
  void Restore(const KeptErasure& kept, const Times& times);
  bool IsOwed(const RedisBlockName& name) const;
  // It was asked for under this name: if it is owed, it is to be erased under it.
  void Name(const RedisBlockName& name, uint64_t now_us);
  // It is on the server, under a name that was erased: it was stored anew, and is owed no more.
  void NoteStored(const RedisBlockName& name);
  // How a store of it ended is not known: it may come late.
  void NoteLost(const RedisBlockName& name);
  // The server works, for the first time: what a predecessor sent may still come for a while.
  void NoteReady(uint64_t now_us);

  // Names of one group that a server is to be asked to erase now. EndAsked is due for each.
  std::vector<RedisBlockName> TakeDue(uint64_t now_us, size_t names_max,
                                      const std::function<bool(const RedisBlockName&)>& may_ask);
  void EndAsked(const RedisBlockName& name, bool is_erased, uint64_t now_us);
  // The group is to be forgotten as a whole, and `revision` of what is kept says so.
  void ReplaceGroup(const GroupId& group, uint64_t revision);
  // REQUIRES: there is one, beside "any".
  GroupId LargestGroup() const;
  // What is over goes; what is older than `patience_us` is kept from now on.
  void Age(uint64_t now_us, uint64_t patience_us);

  // What is to be kept is not what was taken last.
  bool is_changed() const { return is_changed_; }
  std::vector<KeptErasure> TakeKept(uint64_t revision);
  void OnKept(uint64_t revision);
  // Erasures so far, and whether so many of the first are safe.
  uint64_t begun() const { return begun_; }
  bool AreSafe(uint64_t begun) const { return unsafe_.empty() || unsafe_.begin()->first > begun; }

  // Of which the server has still to be told; of blocks, whatever names and members each has, it is
  // counted at the call.
  size_t names_owed() const { return names_owed_; }
  size_t blocks_owed() const;

 private:
  struct Key {
    GroupId group;
    BlockKey key;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return static_cast<size_t>(key.key.low ^ key.group.low * 0x9E3779B97F4A7C15);
    }
  };
  enum class State : uint8_t { kDue, kAsked, kErased };
  struct Named {
    RedisBlockName name;  // without a generation
    uint64_t due_us = 0;
    State state = State::kDue;
    bool is_late = false;  // a store of it may still come: the server is asked twice
    // Erased again since the server was asked, which may have been before others stored it.
    bool is_again = false;
  };
  struct Owed {
    uint64_t number = 0;    // of the erasure
    uint64_t revision = 0;  // of what is kept, the first with it; 0: none yet
    Times times;
    uint64_t turn = 0;  // in any group: which time it was; else of which one it knows
    bool is_by_key = false;
    bool is_to_keep = false;
    bool is_settled = false;  // stored anew since it was erased in any group: nothing of it is owed
    std::vector<Named> names;
  };
  using Blocks = std::unordered_map<Key, Owed, KeyHash>;

  template <typename OwedBlock>
  static auto* Find(OwedBlock& owed, const RedisBlockName& name) {
    const auto found = std::ranges::find_if(owed.names, [&name](const Named& one) {
      return one.name.space == name.space && one.name.run == name.run;
    });
    return found == owed.names.end() ? nullptr : &*found;
  }
  static uint64_t TagOf(const RedisBlockName& name);
  static bool IsTold(const Owed& owed) {
    return std::ranges::all_of(owed.names,
                               [](const Named& one) { return one.state == State::kErased; });
  }
  bool MayBeLate(const RedisBlockName& name, uint64_t now_us) const;
  const Owed* FindInAnyGroup(const BlockKey& key) const;
  // Its erasure in any group, if that is not known to what is owed of the block itself.
  const Owed* FindNews(const RedisBlockName& name, Blocks::const_iterator found) const;
  // What is owed of it, numbered as an erasure. nullptr: there is no room.
  Owed* Open(const Key& key, Scope scope, const Times& times);
  // What was erased is to be erased again.
  void EraseAgain(Owed* owed, uint64_t now_us);
  bool AddName(Owed* owed, const RedisBlockName& name, uint64_t now_us);
  void SetState(Named* named, State state);
  Blocks::iterator Remove(Blocks::iterator block);

  Blocks blocks_;
  std::deque<RedisBlockName> due_;  // some are no more
  size_t name_count_ = 0, names_owed_ = 0, in_any_group_count_ = 0;
  uint64_t turns_ = 0;
  std::deque<uint64_t> lost_order_;
  std::unordered_map<uint64_t, uint32_t> lost_;  // how often
  uint64_t settled_us_ = UINT64_MAX;
  uint64_t begun_ = 0;
  std::map<uint64_t, uint64_t> unsafe_;  // by number; the revision that makes it safe, 0: none yet
  uint64_t kept_revision_ = 0;
  bool is_changed_ = false;
};

}  // namespace terrace
