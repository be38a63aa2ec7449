// What the log has told since the test began.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "daemon/log/log.h"

namespace terrace::test {

class ToldLines {
 public:
  ToldLines() { StartLog({}); }
  ToldLines(const ToldLines&) = delete;
  ToldLines& operator=(const ToldLines&) = delete;
  ~ToldLines() { EXPECT_TRUE(StopLog()); }

  const std::string& ByNow() {
    EXPECT_TRUE(StopLog());  // when it has written all
    std::string lines;
    EXPECT_TRUE(RecentLogLines(kRecentLinesMax, &lines));
    StartLog({});
    return told_ += lines;
  }
  size_t Times(const std::string& word) {
    ByNow();
    size_t count = 0;
    for (size_t at = told_.find(word); at != told_.npos; at = told_.find(word, at + 1)) ++count;
    return count;
  }

 private:
  std::string told_;
};

}  // namespace terrace::test
