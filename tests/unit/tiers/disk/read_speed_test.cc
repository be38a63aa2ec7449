#include "tiers/disk/read_speed.h"

#include <gtest/gtest.h>

#include "tiers/disk/speed_doubt.h"

namespace terrace {
namespace {

constexpr uint64_t kRead = 1'000'000;
constexpr uint64_t kNowUs = 1'000'000'000;

struct Drive {
  uint64_t latency_us = 0;
  uint64_t bytes_per_us = 1;

  // So many reads that begin together.
  void Read(uint32_t count, ReadSpeed* speed, uint64_t now_us = kNowUs) const {
    for (uint64_t i = 1; i <= count; ++i) {
      speed->OnReadDone({.length_bytes = kRead,
                         .behind_bytes = i * kRead,
                         .duration_us = latency_us + i * kRead / bytes_per_us},
                        now_us);
    }
  }
  double After(uint64_t count) const {
    return static_cast<double>(latency_us + count * kRead / bytes_per_us);
  }
};

void ExpectSays(const ReadSpeed& speed, const Drive& drive, uint64_t now_us = kNowUs) {
  for (const uint64_t count : {1, 4, 128}) {
    EXPECT_NEAR(static_cast<double>(speed.PredictUs(count * kRead, now_us)), drive.After(count),
                0.05 * drive.After(count))
        << count << " reads";
  }
}

TEST(ReadSpeed, ANewDriveIsTakenForAMiddlingOne) {
  ExpectSays({}, {.latency_us = 100, .bytes_per_us = 2000});
}

TEST(ReadSpeed, LatencyAndBandwidthAreToldApart) {
  for (const Drive& drive : {Drive{3000, 1000}, Drive{50, 7000}, Drive{20'000, 2000}}) {
    ReadSpeed speed;
    for (int i = 0; i < 8; ++i) drive.Read(8, &speed);
    ExpectSays(speed, drive);
  }
}

TEST(ReadSpeed, ASlowDriveIsFoundOutByOnePrompt) {
  const Drive slow{100, 50};
  ReadSpeed speed;
  Drive{100, 2000}.Read(100, &speed);
  slow.Read(16, &speed);
  ExpectSays(speed, slow);
}

TEST(ReadSpeed, ADriveThatIsFastAgainIsFoundOut) {
  const Drive fast{100, 2000};
  ReadSpeed speed;
  Drive{100, 50}.Read(100, &speed);
  for (int i = 0; i < 8; ++i) fast.Read(4, &speed);
  ExpectSays(speed, fast);
}

// Their reads are all nearly alone.
TEST(ReadSpeed, OfShortPromptsTheLatencyIsEnough) {
  const Drive slow{100, 50};
  ReadSpeed speed;
  for (size_t i = 0; i < ReadSpeed::kReadsMax; ++i) slow.Read(1, &speed);
  EXPECT_NEAR(static_cast<double>(speed.PredictUs(kRead, kNowUs)), slow.After(1),
              0.01 * slow.After(1));
}

TEST(ReadSpeed, AMachineThatStumblesSaysNothingOfTheDrive) {
  const Drive drive{100, 2000};
  ReadSpeed speed;
  for (int i = 0; i < 4; ++i) drive.Read(16, &speed);
  for (uint64_t i = 1; i <= ReadSpeed::kReadsMax / 2; ++i) {
    speed.OnReadDone({.length_bytes = kRead,
                      .behind_bytes = (i % 2 == 0 ? 1 : 8) * kRead,
                      .duration_us = 200'000},
                     kNowUs);
  }
  ExpectSays(speed, drive);
}

// Who is told that it is too slow does not ask: without doubt nobody would ever find out.
TEST(ReadSpeed, ASlowDriveThatNobodyReadsIsWorthAnotherTry) {
  const Drive slow{100, 10}, fast{100, 2000};
  ReadSpeed speed;
  for (int i = 0; i < 8; ++i) slow.Read(8, &speed);
  uint64_t now_us = kNowUs + SpeedDoubt::kHoldsUs;
  ExpectSays(speed, slow, now_us);
  now_us += 10 * SpeedDoubt::kHalvesUs;
  ExpectSays(speed, fast, now_us);
  ReadSpeed other = speed;
  slow.Read(4, &speed, now_us);
  ExpectSays(speed, slow, now_us);
  fast.Read(4, &other, now_us);
  ExpectSays(other, fast, now_us);
}

TEST(ReadSpeed, AFastDriveThatNobodyReadsStaysFast) {
  const Drive fast{50, 7000};
  ReadSpeed speed;
  for (int i = 0; i < 8; ++i) fast.Read(8, &speed);
  ExpectSays(speed, fast, kNowUs + 3'600'000'000);
}

TEST(ReadSpeed, ADriveThatStandsStillIsTakenForOneMegabyteASecond) {
  ReadSpeed speed;
  Drive{0, 1}.Read(8, &speed);
  for (int i = 0; i < 20; ++i) {
    speed.OnReadDone({.length_bytes = kRead, .behind_bytes = 8 * kRead, .duration_us = 1ull << 60},
                     kNowUs);
  }
  EXPECT_LT(speed.PredictUs(kRead, kNowUs), 20 * kRead);
}

}  // namespace
}  // namespace terrace
