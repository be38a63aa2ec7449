// The life of a request's slot, step by step.
#include "client/core/request_table.h"

#include <gtest/gtest.h>

namespace terrace::client {
namespace {

using Claim = RequestTable::Claim;

Request* TakePending(RequestTable& table, uint64_t deadline_us = 0) {
  Request* request = table.Take();
  if (request == nullptr) return nullptr;
  request->is_async = deadline_us != 0;
  request->deadline_us = deadline_us;
  request->asked.verb = protocol::Verb::kMatch;
  table.MakePending(*request);
  return request;
}

// From the first slot on.
Request* ClaimBroken(RequestTable& table) {
  RequestTable::Cursor cursor;
  return table.ClaimBroken(&cursor);
}
Request* ClaimExpired(RequestTable& table, uint64_t now_us, uint64_t* next_us) {
  RequestTable::Cursor cursor;
  return table.ClaimExpired(now_us, &cursor, next_us);
}

TEST(Requests, AnAnswerIsTakenOnce) {
  RequestTable table(2);
  Request* request = TakePending(table);
  const uint64_t id = request->id;
  EXPECT_EQ(table.ClaimAnswered(id + (1 << 16)).claim, Claim::kUnknown);
  EXPECT_EQ(table.ClaimAnswered(id).claim, Claim::kClaimed);
  EXPECT_EQ(table.ClaimAnswered(id).claim, Claim::kUnknown);
  EXPECT_TRUE(table.MarkDone(*request));
  EXPECT_TRUE(request->is_done);
  EXPECT_FALSE(table.Abandon(*request));
  table.Free(*request);
  EXPECT_EQ(table.ClaimAnswered(id).claim, Claim::kUnknown);
}

TEST(Requests, AnAbandonedSlotIsTakenUntilItsLateAnswer) {
  RequestTable table(1);
  Request* request = TakePending(table);
  EXPECT_TRUE(table.Abandon(*request));
  EXPECT_EQ(table.Take(), nullptr);
  const RequestTable::Answered late = table.ClaimAnswered(request->id);
  EXPECT_EQ(late.claim, Claim::kAbandoned);
  EXPECT_FALSE(table.MarkDone(*late.request));
  table.Free(*late.request);
  EXPECT_NE(table.Take(), nullptr);
}

TEST(Requests, WhoGivesUpDuringTheAnswerLeavesItToTheReader) {
  RequestTable table(1);
  Request* request = TakePending(table);
  EXPECT_EQ(table.ClaimAnswered(request->id).claim, Claim::kClaimed);
  EXPECT_TRUE(table.Abandon(*request));
  EXPECT_FALSE(table.MarkDone(*request));
}

TEST(Requests, OnlyTheSameRequestIsWithdrawn) {
  RequestTable table(1);
  Request* request = TakePending(table, 100);
  const uint64_t id = request->id;
  ASSERT_EQ(ClaimBroken(table), request);
  EXPECT_FALSE(table.Withdraw(*request, id));
  table.Free(*request);
  // The slot is another request's by now.
  Request* next = TakePending(table, 100);
  ASSERT_EQ(next, request);
  EXPECT_FALSE(table.Withdraw(*request, id));
  EXPECT_TRUE(table.Withdraw(*next, next->id));
  EXPECT_EQ(table.async_count(), 0u);
}

TEST(Requests, ExpiryAndAnswerMeetInEitherOrder) {
  RequestTable table(1);
  uint64_t next_us = UINT64_MAX;
  Request* request = TakePending(table, 100);
  EXPECT_EQ(ClaimExpired(table, 99, &next_us), nullptr);
  EXPECT_EQ(next_us, 100u);
  ASSERT_EQ(ClaimExpired(table, 100, &next_us), request);
  // Its answer comes while it is reported.
  EXPECT_EQ(table.ClaimAnswered(request->id).claim, Claim::kLate);
  table.FinishExpiry(*request);
  request = TakePending(table, 100);
  ASSERT_NE(request, nullptr);
  // Or afterwards.
  ASSERT_EQ(ClaimExpired(table, 100, &next_us), request);
  table.FinishExpiry(*request);
  EXPECT_EQ(table.Take(), nullptr);
  EXPECT_EQ(table.ClaimAnswered(request->id).claim, Claim::kAbandoned);
  table.Free(*request);
  // Or first.
  request = TakePending(table, 100);
  EXPECT_EQ(table.ClaimAnswered(request->id).claim, Claim::kClaimed);
  EXPECT_EQ(ClaimExpired(table, 100, &next_us), nullptr);
}

// Of thousands none is looked at twice: a caller's thread does this, whose deadline goes on.
TEST(Requests, ThatEndTogetherAreGoneOverOnce) {
  RequestTable table(3);
  uint64_t next_us = UINT64_MAX;
  for (int i = 0; i < 3; ++i) ASSERT_NE(TakePending(table, 100), nullptr);
  RequestTable::Cursor cursor;
  for (uint32_t index = 0; index < 3; ++index) {
    Request* const expired = table.ClaimExpired(100, &cursor, &next_us);
    ASSERT_NE(expired, nullptr);
    EXPECT_EQ(expired->index, index);
    EXPECT_EQ(cursor.index, index + 1);
    EXPECT_EQ(table.ClaimAnswered(expired->id).claim, Claim::kLate);
    table.FinishExpiry(*expired);
    ASSERT_EQ(TakePending(table, 200), expired) << "it is there again, behind the cursor";
  }
  EXPECT_EQ(table.ClaimExpired(300, &cursor, &next_us), nullptr);
  cursor = {};
  for (uint32_t index = 0; index < 3; ++index) {
    ASSERT_NE(table.ClaimBroken(&cursor), nullptr);
    EXPECT_EQ(cursor.index, index + 1);
  }
  EXPECT_EQ(table.ClaimBroken(&cursor), nullptr);
}

TEST(Requests, ABrokenConnectionFreesTheAbandonedAndClaimsThePending) {
  RequestTable table(3);
  Request* abandoned = TakePending(table);
  Request* pending = TakePending(table);
  Request* answered = TakePending(table);
  EXPECT_TRUE(table.Abandon(*abandoned));
  EXPECT_EQ(table.ClaimAnswered(answered->id).claim, Claim::kClaimed);
  RequestTable::Cursor cursor;
  EXPECT_EQ(table.ClaimBroken(&cursor), pending);
  EXPECT_EQ(table.ClaimBroken(&cursor), nullptr);
  EXPECT_EQ(TakePending(table), abandoned);
  EXPECT_EQ(table.Take(), nullptr);
}

}  // namespace
}  // namespace terrace::client
