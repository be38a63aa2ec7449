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

TEST(ConfigText, OfAValueWithoutItsQuotesItIsSaidThatItWantsThem) {
  for (const std::string line :
       {"dram_bytes = 1GiB", "log_level = info", "sandbox = off", "state_dir =/var/lib # here",
        "socket_mode = 0660", "password = planted"}) {
    EXPECT_THAT(Refusal("[daemon]\n" + line + "\n"),
                AllOf(HasSubstr("test.toml:2: this is no TOML"), HasSubstr("written in quotes"),
                      Not(HasSubstr("planted"))));
  }
  EXPECT_THAT(Refusal("[metrics]\n\nlisten = 127.0.0.1:9464"),
              HasSubstr("test.toml:3: this is no TOML"));
  EXPECT_THAT(Refusal("[daemon\n"), Not(HasSubstr("in quotes")));
  EXPECT_THAT(Refusal("[daemon]\nlog_level = \"info\n"), Not(HasSubstr("in quotes")));
}

}  // namespace
}  // namespace terrace
