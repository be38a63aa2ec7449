// DomainGroups: the groups of one domain, each at the index by which its blocks name it, and the
// ids of those whose places others have taken.
//
// THREADING: the store thread. LIMITS: groups_max groups, kForgottenMax replaced ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "daemon/block/erased_below.h"
#include "daemon/block/group.h"

namespace terrace {

class DomainGroups {
 public:
  // Groups that wait for their last erasure; of more the one forgotten first does not wait. If the
  // host dies then, `terrace fsck --repair` frees the slots of what was not erased yet.
  static constexpr size_t kForgottenMax = 256;

  // A group whose place another has taken; its spec stays on disk while a successor might still
  // find a block of it.
  struct Forgotten {
    GroupId id;
    ErasureMark erased;
  };

  size_t size() const { return groups_.size(); }
  const std::unique_ptr<Group>& operator[](size_t place) const { return groups_[place]; }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }
  // Nobody has it open, and nothing is left of its blocks.
  bool IsIdle(uint32_t place) const;
  // Places of groups of this name or of this id; a look at 16 bytes a group.
  std::vector<uint32_t> PlacesOf(const std::string& name, const GroupId& id) const;
  bool Holds(const GroupId& id) const;
  // Rises when a place is another group's than before.
  uint64_t revision() const { return revision_; }
  // In place of an idle group, or, of place size(), as one more.
  void Put(uint32_t place, std::unique_ptr<Group> group);

  bool has_forgotten() const { return !forgotten_.empty(); }
  bool is_forgotten_full() const { return forgotten_.size() >= kForgottenMax; }
  // The one that waits longest; its mark learns from being asked. REQUIRES: has_forgotten().
  Forgotten& first_forgotten();
  // One of the same id waits for the later mark alone. REQUIRES: !is_forgotten_full().
  void AddForgotten(const GroupId& id, const ErasureMark& erased);
  void RemoveForgotten(const GroupId& id);

 private:
  struct Label {
    uint64_t name_hash = 0;
    uint64_t id_low = 0;
  };

  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Label> labels_;  // one a group
  uint64_t revision_ = 0;
  std::deque<Forgotten> forgotten_;  // of one id once
};

}  // namespace terrace
