#include "tools/terrace/content/warm_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <istream>
#include <sstream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kKey[] = "0123456789abcdef0123456789abcdef";

TEST(WarmList, ReadsKeysChainsAndTokensLineByLine) {
  std::istringstream in(std::string("# hot prompts\n\n") + kKey +
                        "\r\n{\"group\": \"llama\", \"tokens\": [1, 2, 4294967295]}\n"
                        "{\"space\": \"qwen\", \"keys\": [\"" +
                        kKey + "\"]}");
  WarmList list(in);
  auto item = list.Next();
  ASSERT_TRUE(item);
  EXPECT_EQ(item->line, 3u);
  EXPECT_FALSE(item->is_chain);
  ASSERT_EQ(item->keys.size(), 1u);
  EXPECT_EQ(ToHex(item->keys[0]), kKey);
  item = list.Next();
  ASSERT_TRUE(item);
  EXPECT_EQ(item->group, "llama");
  EXPECT_TRUE(item->is_chain);
  EXPECT_THAT(item->tokens, ElementsAre(1u, 2u, 4294967295u));
  item = list.Next();
  ASSERT_TRUE(item);
  EXPECT_EQ(item->group, "qwen");
  EXPECT_EQ(item->keys.size(), 1u);
  EXPECT_FALSE(list.Next());
  EXPECT_EQ(list.why(), "");
}

TEST(WarmList, NamesTheLineAndWhatToWrite) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"abc", "'abc' is no key"},
           {"{\"group\": ", "is no JSON"},
           {"{\"group\": \"a\"}", "one of \"keys\" and \"tokens\""},
           {"{\"keys\": [], \"tokens\": []}", "one of \"keys\" and \"tokens\""},
           {"{\"group\": 7, \"tokens\": []}", "\"group\" is no text"},
           {"{\"tokens\": 7}", "\"tokens\" is no array"},
           {"{\"tokens\": [-1]}", "-1 is no token id"},
           {"{\"tokens\": [4294967296]}", "4294967296 is no token id"},
           {"{\"tokens\": [1.5]}", "1.5 is no token id"},
           {"{\"keys\": [\"xyz\"]}", "is no key of 32"},
           {std::string(kWarmLineBytesMax + 1, '0'), "is longer than"}}) {
    std::istringstream in("\n" + text + "\n");
    WarmList list(in);
    EXPECT_FALSE(list.Next()) << text.substr(0, 40);
    EXPECT_THAT(list.why(), AllOf(HasSubstr("line 2: "), HasSubstr(why), HasSubstr("Write a key")))
        << text.substr(0, 40);
  }
}

// A drive that can be read no further.
class Failing : public std::streambuf {
 public:
  explicit Failing(std::string text) : text_(std::move(text)) {
    setg(text_.data(), text_.data(), text_.data() + text_.size());
  }

 private:
  int_type underflow() override {
    errno = EIO;
    throw std::ios_base::failure("reading failed");
  }

  std::string text_;
};

TEST(WarmList, AReadErrorIsNotTheEnd) {
  Failing broken("# a list\n");
  std::istream in(&broken);
  WarmList list(in);
  EXPECT_FALSE(list.Next());
  EXPECT_THAT(list.why(), AllOf(HasSubstr("after line 1"), HasSubstr("Input/output error")));
}

}  // namespace
}  // namespace terrace::tools
