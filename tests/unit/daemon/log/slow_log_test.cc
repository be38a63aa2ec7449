#include "daemon/log/slow_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/log/request_phases.h"

namespace terrace {
namespace {

using nlohmann::json;

SlowRequest RequestOf(uint64_t id, uint64_t began_us, uint64_t took_us) {
  SlowRequest request{.session = 0xabc, .request_id = id, .verb = protocol::Verb::kAcquire};
  request.times.Begin(began_us);
  request.times.Enter(RequestPhase::kNvme, began_us + took_us / 4);
  request.times.Enter(RequestPhase::kReply, began_us + took_us);
  return request;
}

TEST(RequestPhases, PhasesAddUpToTheWhole) {
  RequestPhases times;
  times.Begin(1'000);
  times.Enter(RequestPhase::kStore, 1'010);
  times.Enter(RequestPhase::kNvme, 1'030);
  times.Enter(RequestPhase::kStore, 2'030);
  times.Enter(RequestPhase::kReply, 2'031);
  EXPECT_EQ(times.us(RequestPhase::kQueue), 10u);
  EXPECT_EQ(times.us(RequestPhase::kStore), 21u);
  EXPECT_EQ(times.us(RequestPhase::kNvme), 1'000u);
  EXPECT_EQ(times.us(RequestPhase::kReply), 0u);
  EXPECT_EQ(times.total_us(), 1'031u);
}

TEST(RequestPhases, ATimeBeforeTheLastIsTheLast) {
  RequestPhases times;
  times.Begin(1'000);
  times.Enter(RequestPhase::kStore, 900);
  times.Enter(RequestPhase::kReply, 1'500);
  EXPECT_EQ(times.us(RequestPhase::kQueue), 0u);
  EXPECT_EQ(times.us(RequestPhase::kStore), 500u);
}

TEST(SlowLog, KeepsWhatTookTheLimitOrLonger) {
  SlowLog log;
  log.SetLimit(100);
  log.Note(1, RequestOf(1, 5'000, 99'999));
  log.Note(1, RequestOf(2, 5'000, 100'000));
  EXPECT_EQ(json::parse(log.Answer(0, 200'000, 10))["requests"].size(), 0u) << "another domain's";
  const json answer = json::parse(log.Answer(1, 200'000, 10));
  ASSERT_EQ(answer["requests"].size(), 1u);
  const json row = answer["requests"][0];
  EXPECT_EQ(row["request"], 2);
  EXPECT_EQ(row["session"], "0000000000000abc");
  EXPECT_EQ(row["verb"], "Acquire");
  EXPECT_EQ(row["took_us"], 100'000);
  EXPECT_EQ(row["age_us"], 95'000);
  EXPECT_EQ(row["phases_us"], json({{"queue", 25'000}, {"nvme", 75'000}}));
  log.SetLimit(0);
  log.Note(1, RequestOf(3, 5'000, 900'000));
  EXPECT_EQ(json::parse(log.Answer(1, 200'000, 10))["requests"].size(), 1u) << "0: none is slow";
}

TEST(SlowLog, TheOldestGoAndTheLatestComeFirst) {
  SlowLog log;
  log.SetLimit(1);
  for (uint64_t id = 1; id <= SlowLog::kRowsMax + 5; ++id) log.Note(0, RequestOf(id, id, 2'000));
  const json answer = json::parse(log.Answer(0, 1'000'000, 10'000));
  EXPECT_EQ(answer["request_count"], SlowLog::kRowsMax + 5);
  ASSERT_EQ(answer["requests"].size(), SlowLog::kRowsMax);
  EXPECT_EQ(answer["requests"].front()["request"], SlowLog::kRowsMax + 5);
  EXPECT_EQ(answer["requests"].back()["request"], 6);
  EXPECT_EQ(json::parse(log.Answer(0, 1'000'000, 3))["requests"].size(), 3u);
}

TEST(SlowLog, AResetForgetsTheDomainsRowsAlone) {
  SlowLog log;
  log.SetLimit(1);
  log.Note(0, RequestOf(1, 0, 2'000));
  log.Note(1, RequestOf(2, 0, 2'000));
  log.Reset(0);
  log.Reset(7);
  EXPECT_EQ(json::parse(log.Answer(0, 5'000, 9))["requests"].size(), 0u);
  EXPECT_EQ(json::parse(log.Answer(1, 5'000, 9))["requests"].size(), 1u);
  log.Note(0, RequestOf(3, 0, 2'000));
  EXPECT_EQ(json::parse(log.Answer(0, 5'000, 9))["requests"].size(), 1u);
}

TEST(SlowLog, OfAClientsNameADocumentStaysOne) {
  SlowLog log;
  log.SetLimit(1);
  SlowRequest request = RequestOf(1, 0, 2'000);
  std::string("a\"b\\").copy(request.client_name.data(), 4);
  log.Note(0, request);
  EXPECT_EQ(json::parse(log.Answer(0, 5'000, 9))["requests"][0]["client"], "a\"b\\");
}

}  // namespace
}  // namespace terrace
