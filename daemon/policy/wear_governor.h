// WearGovernor: spends a drive's daily write budget on what is most worth writing. Everything that
// asks is ranked among what asked of late; the share that gets through is what the budget pays for,
// a little more while savings are high and less while they are low. So it tightens by itself when
// traffic grows, and no threshold has to be chosen.
//
// Savings are capped at kSavingsShare of a day's budget: in no 24 hours is more than (1 +
// kSavingsShare) × the budget written.
//
// THREADING: one thread.
#pragma once

#include <array>
#include <cstdint>

namespace terrace {

class WearGovernor {
 public:
  static constexpr double kSavingsShare = 0.02;
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  // kUnlimited: any number. REQUIRES: > 0.
  explicit WearGovernor(uint64_t write_bytes_per_day);

  // Somebody would like to write so much, of this worth (0 to 1).
  void Ask(float worth, uint64_t byte_count, uint64_t now_us);
  // Is that among what the budget pays for now?
  bool Pays(float worth) const;
  // They are written: later ones pay for what savings do not.
  void Charge(uint64_t byte_count, uint64_t now_us);

  uint64_t written_bytes() const { return written_bytes_; }
  bool is_unlimited() const { return budget_bytes_ == kUnlimited; }

 private:
  static constexpr uint32_t kRanks = 64;

  static uint32_t RankOf(float worth);
  void Advance(uint64_t now_us);
  void Fade();

  const uint64_t budget_bytes_;
  double savings_bytes_ = 0;
  double savings_bytes_max_;
  std::array<double, kRanks> asked_bytes_{};  // of late, by rank
  double watched_us_ = 0;                     // in which they asked
  uint64_t last_us_ = 0;
  uint64_t written_bytes_ = 0;
  bool has_begun_ = false;
};

}  // namespace terrace
