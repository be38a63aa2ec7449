// Places of groups, and what waits for its last erasure, without a domain.
#include "daemon/block/domain_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace terrace {
namespace {

TEST(DomainGroups, AGroupIsIdleOnceNobodyHasItOpenAndNoBlockIsLeft) {
  DomainGroups groups;
  groups.Put(0, std::make_unique<Group>());
  EXPECT_TRUE(groups.IsIdle(0));
  groups[0]->session_count = 1;
  EXPECT_FALSE(groups.IsIdle(0));
  groups[0]->session_count = 0;
  const uint32_t row = groups[0]->roots().Take();
  EXPECT_FALSE(groups.IsIdle(0));
  groups[0]->roots().Give(row);
  EXPECT_TRUE(groups.IsIdle(0));
}

TEST(DomainGroups, AnIdleGroupsPlaceIsTakenAndAnothersIsNot) {
  DomainGroups groups;
  groups.Put(0, std::make_unique<Group>());
  groups.Put(1, std::make_unique<Group>());
  const Group* const second = groups[1].get();
  groups[1]->session_count = 1;
  groups.Put(0, std::make_unique<Group>());
  EXPECT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].get(), second);
  EXPECT_DEATH(groups.Put(1, std::make_unique<Group>()), "blocks name a group by its place");
}

TEST(DomainGroups, AreFoundByNameAndByIdAlsoInAPlaceThatChangedHands) {
  std::vector<std::byte> table(SlotTableBytes(kSegmentBytesMin, 1));
  SlotAllocator slots({.segment_bytes = kSegmentBytesMin, .segments_max = 1, .slot_table = table});
  SlotClasses classes;
  DomainGroups groups;
  const auto put = [&](uint32_t place, const std::string& name, uint32_t head_size) {
    SpaceGroupMember member;
    member.spec.model = "m";
    member.spec.head_size = head_size;
    member.spec.part_bytes = {4096};
    SpaceGroupSpec spec;
    spec.name = name;
    spec.members.push_back(std::move(member));
    auto group = std::make_unique<Group>();
    EXPECT_TRUE(group->Open(spec, place, &slots, &classes).ok());
    const GroupId id = group->id();
    groups.Put(place, std::move(group));
    return id;
  };
  const GroupId first = put(0, "a", 64);
  const GroupId second = put(1, "b", 128);
  EXPECT_THAT(groups.PlacesOf("a", second), testing::ElementsAre(0, 1));
  EXPECT_THAT(groups.PlacesOf("b", {}), testing::ElementsAre(1));
  EXPECT_THAT(groups.PlacesOf("c", {}), testing::IsEmpty());
  const GroupId third = put(0, "c", 256);
  EXPECT_THAT(groups.PlacesOf("a", first), testing::IsEmpty());
  EXPECT_FALSE(groups.Holds(first));
  EXPECT_TRUE(groups.Holds(third));
}

TEST(DomainGroups, AGroupForgottenAgainWaitsForTheLaterMarkOnly) {
  DomainGroups groups;
  groups.AddForgotten({.low = 1}, {.below = 5});
  groups.AddForgotten({.low = 2}, {.below = 6});
  groups.AddForgotten({.low = 1}, {.below = 7});
  EXPECT_EQ(groups.first_forgotten().id.low, 2u);
  groups.RemoveForgotten({.low = 2});
  EXPECT_EQ(groups.first_forgotten().erased.below, 7u);
  groups.RemoveForgotten({.low = 1});
  EXPECT_FALSE(groups.has_forgotten());
}

}  // namespace
}  // namespace terrace
