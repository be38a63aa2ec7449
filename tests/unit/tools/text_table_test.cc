#include "tools/terrace/cli/text_table.h"

#include <gtest/gtest.h>

namespace terrace::tools {
namespace {

TEST(TextTable, BytesAreWrittenInTheLargestBinaryUnitThatFits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{20} << 30), "20.0 GiB");
  EXPECT_EQ(FormatBytes((uint64_t{1} << 20) - 1), "1.0 MiB");  // never "1024.0 KiB"
}

TEST(TextTable, SizesAreReadWithUnitsAndWithout) {
  uint64_t bytes = 0;
  EXPECT_TRUE(ParseBytes("65536", &bytes) && bytes == 65536);
  EXPECT_TRUE(ParseBytes("64K", &bytes) && bytes == 65536);
  EXPECT_TRUE(ParseBytes("1.5 MiB", &bytes) && bytes == 3 << 19);
  EXPECT_TRUE(ParseBytes("2g", &bytes) && bytes == uint64_t{2} << 30);
  EXPECT_TRUE(ParseBytes("100B", &bytes) && bytes == 100);
}

TEST(TextTable, WhatIsNoSizeIsRefused) {
  uint64_t bytes = 7;
  for (const char* text : {"", "K", "-1", "1X", "1KK", "iB", "1e30", "0.3", "nan", "99999999T"}) {
    EXPECT_FALSE(ParseBytes(text, &bytes)) << text;
  }
  EXPECT_EQ(bytes, 7u);
}

TEST(TextTable, OfAWordThatIsAPageItsBeginningIsShown) {
  const std::string page(100'000, 'a'), path(1024, '/');
  EXPECT_EQ(WithShortWords("no group '" + page + "' here "),
            "no group '" + page.substr(0, 63) + "... (100,002 bytes) here ");
  EXPECT_EQ(WithShortWords(path + " " + path), path + " " + path);
  EXPECT_EQ(WithShortWords(""), "");
}

TEST(TextTable, CountsAndTimesAreReadable) {
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(0, "block"), "0 blocks");
  EXPECT_EQ(FormatCount(1, "block"), "1 block");
  EXPECT_EQ(FormatCount(1000, "block"), "1,000 blocks");
  EXPECT_EQ(FormatMilliseconds(850), "850 ms");
  EXPECT_EQ(FormatMilliseconds(12345), "12.3 s");
  EXPECT_EQ(FormatMilliseconds(250'000), "4 min 10 s");
  EXPECT_EQ(FormatMilliseconds(2 * 3'600'000 + 59 * 60'000), "2 h 59 min");
  EXPECT_EQ(FormatMilliseconds(uint64_t{50} * 3'600'000), "2 d 2 h");
  EXPECT_EQ(FormatShare(1, 3), "33.3 %");
  EXPECT_EQ(FormatShare(1, 0), "-");
}

TEST(TextTable, ColumnsLineUpWhateverTheirLetters) {
  using enum TextTable::Align;
  TextTable table({{"NAME", kLeft}, {"SIZE", kRight}, {"NOTE", kLeft}});
  table.AddRow({"é", "1 B", ""});
  table.AddRow({"longer", "100 B", "x"});
  EXPECT_EQ(table.Render(),
            "NAME     SIZE  NOTE\n"
            "é         1 B\n"
            "longer  100 B  x\n");
}

}  // namespace
}  // namespace terrace::tools
