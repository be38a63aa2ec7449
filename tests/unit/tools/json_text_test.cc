#include "tools/terrace/cli/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/terrace/cli/stats_view.h"

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Repeated(std::string_view part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

std::string Lists(size_t depth) { return Repeated("[", depth) + Repeated("]", depth); }

std::string Refusal(std::string_view text) {
  std::string why;
  EXPECT_TRUE(ParseJson(text, &why).is_discarded());
  return why;
}

TEST(JsonText, AsDeepAsTheLimitIsRead) {
  std::string why;
  EXPECT_TRUE(ParseJson(Lists(kJsonDepthMax), &why).is_array());
  EXPECT_EQ(why, "");
}

TEST(JsonText, DeeperIsRefusedByPlaceAndLimitBeforeItIsBuilt) {
  EXPECT_THAT(Refusal(Lists(kJsonDepthMax + 1)),
              AllOf(HasSubstr("65 deep"), HasSubstr("byte 65 of 130"), HasSubstr("limit is 64")));
  EXPECT_THAT(Refusal(Repeated("{\"a\":", 1'000'000) + "1" + Repeated("}", 1'000'000)),
              HasSubstr("65 deep"));
}

TEST(JsonText, BracketsInStringsAndBesideOneAnotherAreNotDeep) {
  std::string why;
  const std::string text = "[\"\\\"" + Repeated("[", 200) + "\\\\\"" + Repeated(",[{}]", 200) + "]";
  EXPECT_EQ(ParseJson(text, &why).size(), 201u) << why;
}

TEST(JsonText, WhatIsNoJsonIsRefusedInWordsOfOurOwn) {
  EXPECT_EQ(Refusal("{\"a\": oops}"), "is no JSON from byte 7 of 11 on");
  EXPECT_EQ(Refusal("\xff\xfe{"), "is no JSON from byte 1 of 3 on");
  EXPECT_EQ(Refusal(""), "is no JSON from byte 1 of 0 on");
  EXPECT_EQ(Refusal("]]]]{"), "is no JSON from byte 1 of 5 on");
  EXPECT_EQ(Refusal("[1e999]"), "is JSON of 7 bytes with a number that no type holds");
}

TEST(JsonText, StatsOfAnyDepthAreRefusedAndNotBuilt) {
  std::string why;
  EXPECT_FALSE(StatsView::Parse("{\"domain\":" + Lists(400'000) + "}", &why).ok());
  EXPECT_THAT(why, HasSubstr("limit is 64"));
  EXPECT_FALSE(StatsView::Parse("[1]", &why).ok());
  EXPECT_EQ(why, "is no JSON object");
}

TEST(JsonText, BytesThatAreNoUtf8AreReplaced) {
  EXPECT_EQ(JsonText({{"file", "/a\xff\xfe"}}), "{\"file\":\"/a\xef\xbf\xbd\xef\xbf\xbd\"}");
  EXPECT_EQ(JsonText({{"a", 1}}, 2), "{\n  \"a\": 1\n}");
}

}  // namespace
}  // namespace terrace::tools
