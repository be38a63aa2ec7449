#include "tools/terrace/cli/line_chart.h"

#include <gmock/gmock.h>

namespace terrace::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LineChart, DrawsALineASeriesThroughItsPoints) {
  const LineChart chart{.x_title = "blocks",
                        .y_title = "hit rate, %",
                        .series = {{.name = "lru", .points = {{10, 0}, {1000, 100}}},
                                   {.name = "a<b", .points = {{10, 50}, {1000, 50}}}}};
  const std::string svg = chart.ToSvg();
  // The axes: x from 60 to 710, logarithmic; y from 372 (nothing) up to 16 (all).
  EXPECT_THAT(svg, HasSubstr(R"(points="60.0,372.0 710.0,16.0 ")"));
  EXPECT_THAT(svg, HasSubstr(R"(points="60.0,194.0 710.0,194.0 ")"));
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b")));
  EXPECT_THAT(svg, HasSubstr(">1,000</text>"));
}

TEST(LineChart, OnePointOrNoneIsNoError) {
  EXPECT_THAT(LineChart{}.ToSvg(), HasSubstr("</svg>"));
  const LineChart chart{.series = {{.name = "one", .points = {{7, 7}}}}};
  EXPECT_THAT(chart.ToSvg(), HasSubstr(R"(points="385.0,347.1 ")"));
}

}  // namespace
}  // namespace terrace::tools
