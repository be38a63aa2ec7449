// Places of groups, and what waits for its last erasure, without a domain.
#include "daemon/block/domain_groups.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

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
