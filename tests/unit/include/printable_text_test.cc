#include "src/printable_text.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(PrintableText, LettersOfEveryScriptAreKept) {
  EXPECT_EQ(PrintableText("chat/80 {a}~ …é語😀"), "chat/80 {a}~ …é語😀");
  EXPECT_EQ(PrintableText(""), "");
}

TEST(PrintableText, WhatMovesATerminalIsReplaced) {
  EXPECT_EQ(PrintableText("a\x1b]0;x\x07"
                          "b\x7f\r\t"),
            "a?]0;x?b???");
  EXPECT_EQ(PrintableText(std::string_view("a\0b", 3)), "a?b");
  EXPECT_EQ(PrintableText("a\xc2\x9b"
                          "2J"),
            "a?2J");  // CSI as one character
  EXPECT_EQ(PrintableText("a\xe2\x80\xae"
                          "b\xe2\x81\xa9"),
            "a?b?");  // direction
  EXPECT_EQ(PrintableText("a\xe2\x80\xa8"
                          "b"),
            "a?b");  // a line's end
}

TEST(PrintableText, EachByteThatIsNoUtf8IsReplaced) {
  EXPECT_EQ(PrintableText("\xff\xfe"), "??");
  EXPECT_EQ(PrintableText("\xe8\xaa"), "??");            // cut off
  EXPECT_EQ(PrintableText("\xc0\x9b"), "??");            // overlong
  EXPECT_EQ(PrintableText("\xe0\x80\x9b"), "???");       // overlong
  EXPECT_EQ(PrintableText("\xed\xa0\x80"), "???");       // half of a pair
  EXPECT_EQ(PrintableText("\xf4\x90\x80\x80"), "????");  // beyond the last
  EXPECT_EQ(PrintableText("\xe8\x1b[2J"), "??[2J");      // swallows nothing
}

TEST(PrintableText, OnlyADocumentKeepsItsLines) {
  EXPECT_EQ(PrintableText("a\nb"), "a?b");
  EXPECT_EQ(PrintableText("a\nb\r\n", LineFeeds::kKept), "a\nb?\n");
}

}  // namespace
}  // namespace terrace
