#include "daemon/policy/wear_governor.h"

#include <algorithm>
#include <cmath>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr double kDayUs = 86400e6;
constexpr double kMemoryUs = 1200e6;  // of who asked: about 20 minutes
constexpr double kRanksPerDoubling = 4;
// What is spent, as a share of what comes in: from empty savings to full ones.
constexpr double kShareAtLeast = 0.7;
constexpr double kShareSpan = 4;

}  // namespace

WearGovernor::WearGovernor(uint64_t write_bytes_per_day)
    : budget_bytes_(write_bytes_per_day),
      savings_bytes_max_(static_cast<double>(write_bytes_per_day) * kSavingsShare) {
  TERRACE_CHECK(write_bytes_per_day > 0,
                "a budget of no bytes admits nothing: switch the tier off");
}

uint32_t WearGovernor::RankOf(float worth) {
  const double doublings = 16 + std::log2(std::max(static_cast<double>(worth), 1e-9));
  return static_cast<uint32_t>(std::clamp(doublings * kRanksPerDoubling, 0.0, kRanks - 1.0));
}

void WearGovernor::Advance(uint64_t now_us) {
  if (!has_begun_) {
    has_begun_ = true;
    last_us_ = now_us;
  }
  const auto passed_us = static_cast<double>(now_us - std::min(now_us, last_us_));
  last_us_ = std::max(last_us_, now_us);
  savings_bytes_ += static_cast<double>(budget_bytes_) * passed_us / kDayUs;
  savings_bytes_ = std::min(savings_bytes_, savings_bytes_max_);
  watched_us_ += passed_us;
  if (watched_us_ > kMemoryUs) Fade();
}

void WearGovernor::Fade() {
  const double share = kMemoryUs / 2 / watched_us_;
  for (double& bytes : asked_bytes_) bytes *= share;
  watched_us_ *= share;
}

void WearGovernor::Ask(float worth, uint64_t byte_count, uint64_t now_us) {
  if (is_unlimited()) return;
  Advance(now_us);
  asked_bytes_[RankOf(worth)] += static_cast<double>(byte_count);
}

bool WearGovernor::Pays(float worth) const {
  if (is_unlimited()) return true;
  if (savings_bytes_ <= 0) return false;
  double above_bytes = 0;
  for (uint32_t rank = RankOf(worth) + 1; rank < kRanks; ++rank) above_bytes += asked_bytes_[rank];
  const double paid_bytes = static_cast<double>(budget_bytes_) * watched_us_ / kDayUs;
  const double level = savings_bytes_ / savings_bytes_max_;
  return level >= 1 || above_bytes < paid_bytes * (kShareAtLeast + kShareSpan * level);
}

void WearGovernor::Charge(uint64_t byte_count, uint64_t now_us) {
  written_bytes_ += byte_count;
  if (is_unlimited()) return;
  Advance(now_us);
  savings_bytes_ -= static_cast<double>(byte_count);
}

}  // namespace terrace
