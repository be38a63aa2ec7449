#include "tools/terrace/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

namespace terrace::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Why `--interval value` is refused; "" if it is not.
std::string Refusal(const std::string& value) {
  CLI::App app;
  double interval_s = 2;
  Arguments(&app).AddOption("--interval", interval_s, "").Type("SECONDS").Between(0.1, 3600.0);
  EXPECT_THAT(app.help(), Not(HasSubstr("no finite")));
  try {
    app.parse("--interval " + value);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(Arguments, ANumberWithinItsRangeIsRead) {
  for (const char* value : {"0.1", "2", "3600", "1e2"}) EXPECT_EQ(Refusal(value), "") << value;
}

TEST(Arguments, WhatIsNoFiniteNumberIsRefusedByName) {
  for (const char* value : {"nan", "-nan", "NAN", "inf", "-inf", "1e999", "often"}) {
    EXPECT_THAT(Refusal(value), HasSubstr("no finite number")) << value;
    EXPECT_THAT(Refusal(value), HasSubstr("--interval")) << value;
  }
  for (const char* value : {"0", "-1", "3601"}) EXPECT_THAT(Refusal(value), HasSubstr("3600"));
}

}  // namespace
}  // namespace terrace::tools
