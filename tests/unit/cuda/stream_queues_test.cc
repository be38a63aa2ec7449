#include "cuda/host/stream_queues.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace terrace {
namespace {

class StreamQueuesTest : public testing::Test {
 protected:
  void Push(StreamQueues::Stream* stream, Status status = Status::Ok()) {
    queues_.Push(stream, {[status](uint32_t) { return status; }, 1});
  }
  // Runs the head of a stream; false where it is not ready.
  bool Run(StreamQueues::Stream* stream) {
    if (!IsReady(stream)) return false;
    const Status status = queues_.Begin(stream).run(0);
    queues_.Finish(stream, status);
    return true;
  }
  bool IsReady(StreamQueues::Stream* stream) const {
    return std::ranges::count(queues_.ready(), stream) == 1;
  }

  StreamQueues queues_;
  StreamQueues::Stream* a_ = queues_.CreateStream(StreamPriority::kStore);
  StreamQueues::Stream* b_ = queues_.CreateStream(StreamPriority::kStore);
  StreamQueues::Stream* c_ = queues_.CreateStream(StreamPriority::kLoad);
};

TEST_F(StreamQueuesTest, AWaitHoldsAStreamUntilTheRecordIsReached) {
  QueuedEvent* event = queues_.CreateEvent();
  Push(a_);
  queues_.Record(event, a_);
  queues_.Wait(b_, event);
  Push(b_);
  EXPECT_FALSE(IsReady(b_));
  EXPECT_FALSE(event->is_reached());
  ASSERT_TRUE(Run(a_));
  EXPECT_TRUE(event->is_reached());
  EXPECT_TRUE(IsReady(b_));
}

// Events are used again while earlier waits for them are still queued.
TEST_F(StreamQueuesTest, AWaitKeepsTheRecordItWasMadeFor) {
  QueuedEvent* event = queues_.CreateEvent();
  Push(a_);
  queues_.Record(event, a_);
  queues_.Wait(b_, event);
  Push(b_);
  queues_.Record(event, c_);  // reached at once: nothing is before it
  EXPECT_TRUE(event->is_reached()) << "an event tells of its last record";
  EXPECT_FALSE(IsReady(b_)) << "b waits for what a has not done yet";
  ASSERT_TRUE(Run(a_));
  EXPECT_TRUE(IsReady(b_));
}

TEST_F(StreamQueuesTest, AWaitForAnEventNeverRecordedIsNone) {
  queues_.Wait(a_, queues_.CreateEvent());
  Push(a_);
  EXPECT_TRUE(IsReady(a_));
}

TEST_F(StreamQueuesTest, WhatIsDestroyedStillOrdersWhatIsQueued) {
  QueuedEvent* event = queues_.CreateEvent();
  Push(a_);
  queues_.Record(event, a_);
  queues_.Wait(b_, event);
  queues_.DestroyEvent(event);
  Push(b_);
  queues_.DestroyStream(a_);
  EXPECT_FALSE(IsReady(b_));
  ASSERT_TRUE(Run(a_)) << "what a destroyed stream holds still runs";
  EXPECT_TRUE(Run(b_));
  EXPECT_TRUE(queues_.is_idle());
}

TEST_F(StreamQueuesTest, AFailureReachesAllThatBuildsOnIt) {
  QueuedEvent* copied = queues_.CreateEvent();
  QueuedEvent* used = queues_.CreateEvent();
  QueuedEvent* other = queues_.CreateEvent();
  Push(a_, Status(StatusCode::kIo, "lost"));
  Push(a_);
  queues_.Record(copied, a_);
  queues_.Wait(b_, copied);
  Push(b_);
  queues_.Record(used, b_);
  Push(c_);
  queues_.Record(other, c_);
  while (Run(a_) || Run(b_) || Run(c_)) {
  }
  EXPECT_EQ(copied->failure().code(), StatusCode::kIo);
  EXPECT_EQ(used->failure().code(), StatusCode::kIo);
  EXPECT_TRUE(other->failure().ok());
}

TEST_F(StreamQueuesTest, LoadsAreReadyBeforeStores) {
  Push(a_);
  Push(c_);
  ASSERT_EQ(queues_.ready().size(), 2u);
  EXPECT_EQ(queues_.ready().front(), c_);
}

}  // namespace
}  // namespace terrace
