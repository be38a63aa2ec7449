#include "tools/terrace/cli/verb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

constexpr char kHostile[] = "a\x1b]0;x\x07\xff é\nb";

std::string Printed(void (*print)()) {
  CaptureStdout();
  print();
  std::fflush(stdout);
  return GetCapturedStdout();
}

TEST(VerbOutput, ASentenceIsOnePrintableLine) {
  CaptureStderr();
  EXPECT_EQ(Fail(kHostile), kExitFailed);
  EXPECT_EQ(GetCapturedStderr(), "terrace: a?]0;x?? é?b\n");
}

TEST(VerbOutput, TextIsPrintableAndKeepsItsLines) {
  EXPECT_EQ(Printed([] { PrintText(kHostile); }), "a?]0;x?? é\nb");
}

TEST(VerbOutput, ADocumentIsEscapedAsJsonIs) {
  EXPECT_EQ(Printed([] {
              PrintJson({{"name", "\x1b\x07?\n\xff"}});
            }),
            "{\n  \"name\": \"\\u001b\\u0007?\\n\xef\xbf\xbd\"\n}\n");
}

TEST(VerbOutput, ACellOfATableIsOneLine) {
  TextTable table({{"NAME"}, {"N"}});
  table.AddRow({kHostile, "1"});
  EXPECT_EQ(table.Render(), "NAME          N\na?]0;x?? é?b  1\n");
}

TEST(VerbOutput, WhatDoesNotArriveIsSaidAndFails) {
  for (const size_t byte_count : {size_t{1}, size_t{100'000}}) {
    std::FILE* const full = std::fopen("/dev/full", "w");
    ASSERT_NE(full, nullptr);
    const std::string text(byte_count, 'x');
    std::fwrite(text.data(), 1, text.size(), full);
    CaptureStderr();
    EXPECT_EQ(FinishOutput(full, kExitOk), kExitFailed);
    EXPECT_THAT(GetCapturedStderr(),
                AllOf(HasSubstr("standard output"), HasSubstr("another file")));
    std::fclose(full);
  }
}

TEST(VerbOutput, WhatArrivesChangesNoExitCode) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  std::fputs("text", file);
  for (const ExitCode code : {kExitOk, kExitFailed, kExitUsage}) {
    EXPECT_EQ(FinishOutput(file, code), code);
  }
  std::fclose(file);
}

}  // namespace
}  // namespace terrace::tools
