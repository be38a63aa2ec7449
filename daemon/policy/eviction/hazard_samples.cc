#include "daemon/policy/eviction/hazard_samples.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kPerBlock = 16;  // as a multiple of the capacity: ghosts, too
constexpr uint32_t kObserved = 96;  // put to the model at a time

constexpr uint32_t kHeadsPerSample = 4;

uint64_t IdleUs(const HazardSamples::Sample& sample, uint64_t now_us) {
  return now_us - std::min(now_us, sample.time_us);
}

}  // namespace

HazardSamples::HazardSamples(uint32_t capacity_blocks)
    : count_max_(static_cast<uint32_t>(
          std::min<uint64_t>(uint64_t{capacity_blocks} * kPerBlock, kCountMax))),
      next_(count_max_, kNone),
      heads_(std::bit_ceil(kHeadsPerSample * count_max_), kNone),
      chain_hash_(heads_.size()) {
  TERRACE_CHECK(capacity_blocks > 0, "a tier of no blocks has no uses");
  samples_.reserve(count_max_);
}

uint32_t HazardSamples::Find(uint32_t fingerprint) const {
  uint32_t place = heads_[ChainOf(fingerprint)];
  while (place != kNone && samples_[place].fingerprint != fingerprint) place = next_[place];
  return place;
}

void HazardSamples::Unlink(uint32_t place) {
  uint32_t* link = &heads_[ChainOf(samples_[place].fingerprint)];
  while (*link != place) link = &next_[*link];
  *link = next_[place];
}

void HazardSamples::Add(const Sample& sample, uint64_t now_us) {
  const auto place = static_cast<uint32_t>(added_count_++ % count_max_);
  if (place == samples_.size()) {
    samples_.emplace_back();
  } else if (samples_[place].waited_us == 0) {
    Unlink(place);
  }
  EndWait(sample.fingerprint, now_us);
  samples_[place] = sample;
  next_[place] = std::exchange(heads_[ChainOf(sample.fingerprint)], place);
}

const HazardSamples::Sample* HazardSamples::EndWait(uint32_t fingerprint, uint64_t now_us) {
  const uint32_t place = Find(fingerprint);
  if (place == kNone) return nullptr;
  Unlink(place);
  Sample& sample = samples_[place];
  sample.waited_us = std::max<uint64_t>(IdleUs(sample, now_us), 1);
  return &sample;
}

void HazardSamples::OnFork(const Fork& fork, uint64_t now_us) {
  const uint32_t place = Find(fork.fingerprint);
  if (place == kNone || samples_[place].time_us != fork.time_us) return;
  Sample& sample = samples_[place];
  sample.fork = fork.fork;
  sample.fork_idle_us = IdleUs(sample, now_us);
}

void HazardSamples::LearnSome(uint64_t now_us) {
  for (uint32_t i = 0; i < kObserved && !samples_.empty(); ++i) {
    const Sample& sample = samples_[next_observed_];
    const bool has_come = sample.waited_us != 0;
    const uint64_t idle_us = has_come ? sample.waited_us : now_us - sample.time_us;
    const auto outcome = has_come ? HazardModel::Outcome::kUsed : HazardModel::Outcome::kWaits;
    ReuseTraits traits = sample.traits;
    if (sample.fork != 0) {
      model_.Observe(traits, sample.fork_idle_us, HazardModel::Outcome::kWaits);
      traits.fork = sample.fork;
    }
    model_.ObserveFrom(traits, sample.fork_idle_us, idle_us, outcome);
    if (++next_observed_ < samples_.size()) continue;
    next_observed_ = 0;
    model_.Fit();
    break;
  }
  model_.RefreshSome();
}

}  // namespace terrace
