// What of a file is no TOML, told to somebody who has not learnt TOML.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "config_fixture.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ConfigText, AValueWithoutItsQuotesIsShownWithThem) {
  for (const std::string line : {"dram_bytes = 1GiB", "log_level = info", "sandbox = off",
                                 "state_dir =/var/lib # here", "socket_mode = 0660"}) {
    const size_t equals = line.find(" =");
    const std::string key = line.substr(0, equals);
    std::string value = line.substr(equals + 2);
    value = value.substr(value.find_first_not_of(' '));
    value = value.substr(0, value.find(' '));
    EXPECT_THAT(Refusal("[daemon]\n" + line + "\n"),
                AllOf(HasSubstr("test.toml:2: this is no TOML"),
                      HasSubstr("in quotes: " + key + " = \"" + value + "\"")));
  }
  EXPECT_THAT(Refusal("[metrics]\n\nlisten = 127.0.0.1:9464"),
              HasSubstr("test.toml:3: this is no TOML"));
  EXPECT_THAT(Refusal("[daemon\n"), Not(HasSubstr("in quotes")));
  EXPECT_THAT(Refusal("[daemon]\nlog_level = \"info\n"), Not(HasSubstr("in quotes")));
}

}  // namespace
}  // namespace terrace
