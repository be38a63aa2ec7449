#include "daemon/block/domain_groups.h"

#include <algorithm>
#include <functional>
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
  labels_.resize(std::max<size_t>(labels_.size(), place + 1));
  labels_[place] = {.name_hash = std::hash<std::string>()(group->spec().name),
                    .id_low = group->id().low};
  if (place == groups_.size()) {
    groups_.push_back(std::move(group));
    return;
  }
  TERRACE_CHECK(IsIdle(place), "blocks name a group by its place");
  groups_[place] = std::move(group);
}

std::vector<uint32_t> DomainGroups::PlacesOf(const std::string& name, const GroupId& id) const {
  TERRACE_CHECK(labels_.size() == groups_.size(), "a group has a label: else it is opened twice");
  const uint64_t name_hash = std::hash<std::string>()(name);
  std::vector<uint32_t> places;
  for (uint32_t place = 0; place < labels_.size(); ++place) {
    if (labels_[place].name_hash != name_hash && labels_[place].id_low != id.low) continue;
    const Group& group = *groups_[place];
    if (group.spec().name == name || group.id() == id) places.push_back(place);
  }
  return places;
}

bool DomainGroups::Holds(const GroupId& id) const {
  for (size_t place = 0; place < labels_.size(); ++place) {
    if (labels_[place].id_low == id.low && groups_[place]->id() == id) return true;
  }
  return false;
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
