#include "tiers/redis/fetch_speed.h"

#include <algorithm>

#include "terrace/check.h"
#include "tiers/disk/speed_doubt.h"

namespace terrace {

void FetchSpeed::OnFetchBegun(uint64_t now_us) {
  if (awaited_++ == 0) silent_since_us_ = now_us;
}

void FetchSpeed::OnFetchEnded(uint64_t now_us) {
  TERRACE_CHECK(awaited_ > 0, "a fetch ends once");
  --awaited_;
  silent_since_us_ = now_us;
}

// Fetches overlap: the time since the one before, if that is later than the own beginning, is what
// this one's bytes took.
void FetchSpeed::OnFetched(uint64_t begun_us, uint64_t length_bytes, uint64_t now_us) {
  const uint64_t took_us = now_us - std::max(begun_us, fetched_us_);
  ps_per_byte_.Take(took_us * 1'000'000 / std::max<uint64_t>(length_bytes, 1), now_us);
  fetched_us_ = now_us;
}

void FetchSpeed::OnProbed(uint64_t begun_us, uint64_t now_us) {
  round_trip_us_.Take(now_us - begun_us, now_us);
}

void FetchSpeed::Measured::Take(uint64_t seen, uint64_t now_us) {
  value = SpeedDoubt::IsInDoubt(now_us - measured_us) ? seen : (7 * value + seen) / 8;
  measured_us = now_us;
}

uint64_t FetchSpeed::Measured::Believed(uint64_t now_us) const {
  return static_cast<uint64_t>(SpeedDoubt::Believed(
      static_cast<double>(value), static_cast<double>(first), now_us - measured_us));
}

uint64_t FetchSpeed::PredictUs(uint64_t length_bytes, uint64_t now_us) const {
  const uint64_t moving_us = 2 * round_trip_us_.Believed(now_us) +
                             length_bytes * ps_per_byte_.Believed(now_us) / 1'000'000;
  return std::max(moving_us, awaited_ == 0 ? 0 : now_us - silent_since_us_);
}

}  // namespace terrace
