#include "daemon/block/domain_groups.h"

#include <utility>

#include "terrace/check.h"

namespace terrace {

bool DomainGroups::IsIdle(uint32_t place) const {
  TERRACE_CHECK(place < groups_.size(), "a place is that of a group");
  const Group& group = *groups_[place];
  return group.session_count == 0 && group.roots().used_count() == 0;
}

void DomainGroups::Put(uint32_t place, std::unique_ptr<Group> group) {
  TERRACE_CHECK(place <= groups_.size() && group != nullptr, "places are taken one by one");
  ++revision_;
  if (place == groups_.size()) {
    groups_.push_back(std::move(group));
    return;
  }
  TERRACE_CHECK(IsIdle(place), "blocks name a group by its place");
  groups_[place] = std::move(group);
}

DomainGroups::Forgotten& DomainGroups::first_forgotten() {
  TERRACE_CHECK(has_forgotten(), "the first of some");
  return forgotten_.front();
}

void DomainGroups::AddForgotten(const GroupId& id, const ErasureMark& erased) {
  RemoveForgotten(id);
  TERRACE_CHECK(!is_forgotten_full(), "groups that wait for their last erasure are bounded");
  forgotten_.push_back({.id = id, .erased = erased});
}

void DomainGroups::RemoveForgotten(const GroupId& id) {
  std::erase_if(forgotten_, [&id](const Forgotten& group) { return group.id == id; });
}

}  // namespace terrace
