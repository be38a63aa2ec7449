// How long a pinner sleeps.
#include "client/arena/segment_pinner.h"

#include <gtest/gtest.h>

namespace terrace::client {
namespace {

TEST(PinnerLooks, AreAtTheEndOfItsPatienceWhileThatLiesAhead) {
  EXPECT_EQ(NextPinnerLookUs(10, 1'000, 400), 400u);
  EXPECT_EQ(NextPinnerLookUs(10, 300, 400), 300u);
  EXPECT_EQ(NextPinnerLookUs(10, 1'000, 0), 1'000u) << "it has asked for no turn";
}

TEST(PinnerLooks, OfAPausedOneWhosePatienceHasEndedAreNotEndless) {
  EXPECT_EQ(NextPinnerLookUs(400, 1'000, 400), 1'000u);
  EXPECT_EQ(NextPinnerLookUs(999, 1'000, 400), 1'000u);
}

}  // namespace
}  // namespace terrace::client
