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
  Measure(took_us * 1'000'000 / std::max<uint64_t>(length_bytes, 1), now_us, &ps_per_byte_);
  fetched_us_ = measured_us_ = now_us;
}

void FetchSpeed::OnProbed(uint64_t begun_us, uint64_t now_us) {
  Measure(now_us - begun_us, now_us, &round_trip_us_);
  measured_us_ = now_us;
}

void FetchSpeed::Measure(uint64_t seen, uint64_t now_us, uint64_t* believed) const {
  *believed = SpeedDoubt::IsInDoubt(now_us - measured_us_) ? seen : (7 * *believed + seen) / 8;
}

uint64_t FetchSpeed::Doubted(uint64_t measured, uint64_t first, uint64_t now_us) const {
  return static_cast<uint64_t>(SpeedDoubt::Believed(
      static_cast<double>(measured), static_cast<double>(first), now_us - measured_us_));
}

uint64_t FetchSpeed::PredictUs(uint64_t length_bytes, uint64_t now_us) const {
  const uint64_t round_trip_us = Doubted(round_trip_us_, kFirstRoundTripUs, now_us);
  const uint64_t ps_per_byte = Doubted(ps_per_byte_, kFirstPsPerByte, now_us);
  const uint64_t moving_us = 2 * round_trip_us + length_bytes * ps_per_byte / 1'000'000;
  return std::max(moving_us, awaited_ == 0 ? 0 : now_us - silent_since_us_);
}

}  // namespace terrace
