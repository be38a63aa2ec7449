#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "terrace/space.h"
#include "unit/include/example_space.h"

namespace terrace {
namespace {

using testing::HasSubstr;

SpaceGroupMember WindowedMember() {
  SpaceGroupMember member{.spec = ExampleSpace(0)};
  member.spec.attention = AttentionKind::kSliding;
  member.spec.window_tokens = 1024;
  member.spec.attention_group = 1;
  return member;
}

TEST(SpaceGroup, IdIsTheGoldenVector) {
  EXPECT_EQ(ToHex(ExampleGroup().Id()), "b1b2953c5b00cbba32eaeafef971b761");
}

TEST(SpaceGroup, IdDependsOnTheSpacesAndTheirOrderAlone) {
  SpaceGroupSpec group = ExampleGroup();
  group.name = "another";
  group.members[1].is_remote = true;
  EXPECT_EQ(group.Id(), ExampleGroup().Id());

  std::swap(group.members[0], group.members[1]);
  EXPECT_NE(group.Id(), ExampleGroup().Id());

  group = ExampleGroup();
  group.members.pop_back();
  EXPECT_NE(group.Id(), ExampleGroup().Id());

  group = ExampleGroup();
  group.members[1].spec.salt = "s";
  EXPECT_NE(group.Id(), ExampleGroup().Id());
}

TEST(SpaceGroup, MasksTellFullWindowedAndLocalMembersApart) {
  SpaceGroupSpec group = ExampleGroup();
  group.members.push_back(WindowedMember());
  group.members[1].is_remote = true;
  EXPECT_EQ(group.full_member_mask(), 0b011u);
  EXPECT_EQ(group.windowed_member_mask(), 0b100u);
  EXPECT_EQ(group.local_member_mask(), 0b101u);
}

TEST(SpaceGroup, LargestGroupIsValidAndHasABitForEveryMember) {
  SpaceGroupSpec group;
  group.name = std::string(kGroupNameBytesMax, 'n');
  for (uint32_t rank = 0; rank < kGroupMembersMax; ++rank) {
    SpaceSpec spec = ExampleSpace(rank);
    spec.tp_size = kGroupMembersMax;
    group.members.push_back({.spec = spec});
  }
  std::string why;
  EXPECT_TRUE(group.Validate(&why).ok()) << why;
  EXPECT_EQ(group.full_member_mask(), ~uint64_t{0});
}

struct Refusal {
  std::function<void(SpaceGroupSpec&)> apply;
  const char* reason;
};

TEST(SpaceGroup, RefusalsNameTheMemberAndTheReason) {
  const std::vector<Refusal> refusals = {
      {[](SpaceGroupSpec& g) { g.name.clear(); }, "the group's name has 0 characters"},
      {[](SpaceGroupSpec& g) { g.name.assign(129, 'n'); }, "has 129 characters; it must have 1 to"},
      {[](SpaceGroupSpec& g) { g.name = "a\nb"; }, "has byte 10 at position 1"},
      {[](SpaceGroupSpec& g) { g.name = "\xC3\xA9"; }, "has byte 195 at position 0"},
      {[](SpaceGroupSpec& g) { g.members.clear(); }, "'llama3-70b' has 0 members; it must have 1"},
      {[](SpaceGroupSpec& g) { g.members.resize(65); }, "has 65 members; it must have 1 to 64"},
      {[](SpaceGroupSpec& g) { g.members[1].spec.layers = 0; }, "member 1: field 'layers' is 0"},
      {[](SpaceGroupSpec& g) { g.members[1].spec.block_tokens = 32; },
       "member 1: block_tokens is 32 but member 0 has 16"},
      {[](SpaceGroupSpec& g) { g.members.push_back(g.members[0]); },
       "members 0 and 2 are the same Space"},
      {[](SpaceGroupSpec& g) {
         g.members.push_back({.spec = g.members[1].spec, .is_remote = true});
       },
       "members 1 and 2 are the same Space"},
      {[](SpaceGroupSpec& g) { g.members = {WindowedMember()}; },
       "has 1 windowed members and none without a window"},
  };
  for (const Refusal& refusal : refusals) {
    SpaceGroupSpec group = ExampleGroup();
    refusal.apply(group);
    std::string why;
    EXPECT_EQ(group.Validate(&why).code(), StatusCode::kInvalid) << refusal.reason;
    EXPECT_THAT(why, HasSubstr(refusal.reason));
  }
}

TEST(SpaceGroup, ExampleIsValidWithAWindowedMember) {
  SpaceGroupSpec group = ExampleGroup();
  group.members.push_back(WindowedMember());
  std::string why;
  EXPECT_TRUE(group.Validate(&why).ok()) << why;
}

}  // namespace
}  // namespace terrace
