#include "tools/terrace/cli/space_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "terrace/protocol.h"

namespace terrace::tools {
namespace {

void Append(const SpaceMember& member, std::vector<std::byte>* body) {
  const protocol::OpenMember head{.text_bytes = static_cast<uint32_t>(member.text.size()),
                                  .is_remote = member.is_remote};
  const auto bytes = std::as_bytes(std::span(&head, 1));
  body->insert(body->end(), bytes.begin(), bytes.end());
  const auto text = std::as_bytes(std::span(member.text));
  body->insert(body->end(), text.begin(), text.end());
}

TEST(SpaceText, MembersAreReadAsOpenHasThem) {
  std::vector<std::byte> body;
  Append({.text = "model=a\n"}, &body);
  Append({.text = "model=b\n", .is_remote = true}, &body);
  const auto members = ReadSpaceMembers(body);
  ASSERT_TRUE(members.has_value());
  ASSERT_EQ(members->size(), 2u);
  EXPECT_EQ((*members)[0].text, "model=a\n");
  EXPECT_FALSE((*members)[0].is_remote);
  EXPECT_EQ((*members)[1].text, "model=b\n");
  EXPECT_TRUE((*members)[1].is_remote);
  for (size_t cut = 1; cut < body.size(); ++cut) {
    if (cut == body.size() / 2) continue;  // the first alone is whole
    EXPECT_FALSE(ReadSpaceMembers(std::span(body).first(cut)).has_value()) << cut;
  }
}

TEST(SpaceText, WhatAllShareIsSaidOnceAndTheRestInOrder) {
  std::vector<SpaceMember> members;
  for (const char* rank : {"0", "1", "2", "3"}) {
    members.push_back({.text = std::string("model=llama\nadapter=\ndtype=bf16\ntp_rank=") + rank +
                               "\ntp_size=4\n"});
  }
  EXPECT_EQ(DescribeSpaces(members), "model=llama dtype=bf16 tp_rank=0-3 tp_size=4");
  members.resize(2);
  members[1].is_remote = true;
  EXPECT_EQ(DescribeSpaces(members),
            "model=llama dtype=bf16 tp_rank=0,1 tp_size=4 (1 on other hosts)");
  members[1].text = "model=qwen\nsalt=x\n";
  EXPECT_EQ(DescribeSpaces(members),
            "model=llama,qwen dtype=bf16 tp_rank=0 tp_size=4 salt=x (1 on other hosts)");
}

TEST(SpaceText, AsJsonEachMemberHasAllItsFields) {
  const std::vector<SpaceMember> members = {{.text = "model=a=b\nadapter=\n"}};
  const nlohmann::json list = ToJson(members);
  EXPECT_EQ(list[0]["spec"]["model"], "a=b");
  EXPECT_EQ(list[0]["spec"]["adapter"], "");
  EXPECT_EQ(list[0]["is_remote"], false);
}

}  // namespace
}  // namespace terrace::tools
