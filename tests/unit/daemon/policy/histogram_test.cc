#include "daemon/policy/histogram.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

// Bounds 4, 16, 64.
using Small = Histogram<2, 2, 3>;

size_t BucketOf(uint64_t value) {
  Small histogram;
  histogram.Add(value);
  for (size_t i = 0; i < 4; ++i) {
    if (histogram.view().counts[i] == 1) return i;
  }
  return 99;
}

TEST(Histogram, AValueIsInTheFirstBucketWhoseBoundItDoesNotPass) {
  for (const uint64_t value : {0, 1, 4}) EXPECT_EQ(BucketOf(value), 0u) << value;
  for (const uint64_t value : {5, 8, 16}) EXPECT_EQ(BucketOf(value), 1u) << value;
  for (const uint64_t value : {17, 33, 64}) EXPECT_EQ(BucketOf(value), 2u) << value;
  EXPECT_EQ(BucketOf(65), 3u);
  EXPECT_EQ(BucketOf(UINT64_MAX), 3u);
}

TEST(Histogram, BoundsAreWhatTheViewSays) {
  const Small histogram;
  const HistogramView view = histogram.view();
  ASSERT_EQ(view.bound_count(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(BucketOf(view.bound_of(i)), i);
    EXPECT_EQ(BucketOf(view.bound_of(i) + 1), i + 1);
  }
}

TEST(Histogram, WeightsCountAsSoManyValues) {
  Small histogram;
  histogram.Add(10, 3);
  histogram.AddBeyond(2);
  EXPECT_EQ(histogram.view().counts[1], 3u);
  EXPECT_EQ(histogram.view().counts[3], 2u);
  EXPECT_EQ(histogram.view().sum, 30u) << "what is beyond is as large as nobody knows";
}

}  // namespace
}  // namespace terrace
