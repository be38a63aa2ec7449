#include "daemon/policy/hit_meter.h"

#include <algorithm>
#include <bit>

#include "terrace/units.h"

namespace terrace {

using protocol::HitRateCounts;

namespace {

constexpr uint64_t kUsPerMinute = 60 * kUsPerSecond;
constexpr size_t kWords = sizeof(HitRateCounts) / sizeof(uint64_t);
using Words = std::array<uint64_t, kWords>;

void AddCounts(const HitRateCounts& more, HitRateCounts* sum) {
  auto words = std::bit_cast<Words>(*sum);
  const auto added = std::bit_cast<Words>(more);
  for (size_t i = 0; i < kWords; ++i) words[i] += added[i];
  *sum = std::bit_cast<HitRateCounts>(words);
}

uint64_t SpanBytes(const HitMeterOptions& options) {
  const uint64_t factor = protocol::kHitRateFactorsHalves.back() / 2;
  return std::max(options.dram_bytes, options.below_bytes) * factor + 1;
}

}  // namespace

HitMeter::HitMeter(const HitMeterOptions& options)
    : options_(options), curve_(SpanBytes(options), options.seed) {}

void HitMeter::OnAsked(uint32_t group_index, std::span<const BlockKey> keys, uint64_t block_bytes,
                       uint64_t now_us) {
  HitRateCounts counts{.sampled_asked = keys.size()};
  uint64_t stood_for = 0;  // keys
  sampled_.clear();
  for (uint32_t i = 0; i < keys.size(); ++i) {
    if (!curve_.IsSampled(keys[i])) continue;
    sampled_.push_back(i);
    const uint64_t distance_bytes = curve_.DistanceOf(keys[i]);
    stood_for += curve_.weight();
    if (distance_bytes == CapacityCurve::kFar) {
      reuse_distances_.AddBeyond(curve_.weight());
    } else {
      reuse_distances_.Add(distance_bytes, curve_.weight());
    }
    for (size_t f = 0; f < protocol::kHitRateFactorsHalves.size(); ++f) {
      const uint64_t halves = protocol::kHitRateFactorsHalves[f];
      const uint64_t dram_bytes = options_.dram_bytes / 2 * halves;
      const uint64_t below_bytes = std::max(options_.dram_bytes, options_.below_bytes / 2 * halves);
      if (distance_bytes < dram_bytes) counts.sampled_hit_if_dram[f] += curve_.weight();
      if (distance_bytes < below_bytes) counts.sampled_hit_if_below[f] += curve_.weight();
    }
  }
  // Where the sample stands for too few or too many, that is because of the keys used most.
  for (uint64_t& hits : counts.sampled_hit_if_dram) hits += keys.size() - stood_for;
  for (uint64_t& hits : counts.sampled_hit_if_below) hits += keys.size() - stood_for;
  // Tail first, as a tier touches them.
  for (size_t i = sampled_.size(); i-- > 0;) {
    if (curve_.IsSampled(keys[sampled_[i]])) curve_.Use(keys[sampled_[i]], block_bytes);
  }
  Add(group_index, counts, now_us);
}

void HitMeter::OnStored(std::span<const BlockKey> keys, uint64_t block_bytes) {
  for (size_t i = keys.size(); i-- > 0;) {
    if (curve_.IsSampled(keys[i])) curve_.Use(keys[i], block_bytes);
  }
}

void HitMeter::OnAnswered(uint32_t group_index, const HitRateCounts& counts, uint64_t now_us) {
  Add(group_index, counts, now_us);
}

void HitMeter::Add(uint32_t group_index, const HitRateCounts& counts, uint64_t now_us) {
  if (group_index >= groups_.size()) groups_.resize(group_index + 1);
  if (groups_[group_index] == nullptr) groups_[group_index] = std::make_unique<History>();
  AddTo(groups_[group_index].get(), counts, now_us);
  AddTo(&all_, counts, now_us);
}

void HitMeter::AddTo(History* history, const HitRateCounts& counts, uint64_t now_us) {
  const uint64_t minute = now_us / kUsPerMinute + 1;
  Minute& place = history->minutes[minute % kMinutes];
  if (place.minute != minute) place = {.minute = minute, .counts = {}};
  AddCounts(counts, &place.counts);
  AddCounts(counts, &history->since_start);
}

std::array<HitRateCounts, protocol::kHitRateWindows> HitMeter::Counts(uint32_t group_index,
                                                                      uint64_t now_us) const {
  std::array<HitRateCounts, protocol::kHitRateWindows> windows{};
  const History* history = &all_;
  if (group_index != protocol::kHitRateAllGroups) {
    if (group_index >= groups_.size() || groups_[group_index] == nullptr) return windows;
    history = groups_[group_index].get();
  }
  const uint64_t now_minute = now_us / kUsPerMinute + 1;
  for (const Minute& minute : history->minutes) {
    if (minute.minute == 0) continue;
    for (size_t w = 0; w < protocol::kHitRateWindowMinutes.size(); ++w) {
      if (minute.minute + protocol::kHitRateWindowMinutes[w] < now_minute) continue;
      AddCounts(minute.counts, &windows[w]);
    }
  }
  windows.back() = history->since_start;
  return windows;
}

const HitRateCounts& HitMeter::SinceStart(uint32_t group_index) const {
  static constexpr HitRateCounts kNothing{};
  if (group_index == protocol::kHitRateAllGroups) return all_.since_start;
  const bool is_known = group_index < groups_.size() && groups_[group_index] != nullptr;
  return is_known ? groups_[group_index]->since_start : kNothing;
}

void HitMeter::ForgetGroup(uint32_t group_index) {
  if (group_index < groups_.size()) groups_[group_index].reset();
}

std::array<HitRateCounts, HitMeter::kMinutesKept> HitMeter::Minutes(uint64_t now_us) const {
  std::array<HitRateCounts, kMinutesKept> minutes{};
  const uint64_t now_minute = now_us / kUsPerMinute + 1;
  for (const Minute& minute : all_.minutes) {
    const uint64_t ago = now_minute - minute.minute;
    if (minute.minute != 0 && ago < kMinutesKept) minutes[kMinutesKept - 1 - ago] = minute.counts;
  }
  return minutes;
}

}  // namespace terrace
