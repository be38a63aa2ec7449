#include "daemon/eviction/hazard_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace terrace {
namespace {

constexpr double kFirstAgeS = 0.5;
constexpr double kAgeRatio = 1.6;
constexpr float kPriorUses = 5;     // the belief in a prior, in uses
constexpr float kFitShare = 0.12f;  // of the way, at each Fit; × 7 factors of a rate < 2: stable
constexpr float kLevelStep = 0.1f;  // in log rate
constexpr float kLevelMiddle = 40;
constexpr float kExpectedMax = 50;  // of one observation in one age
constexpr float kRateMin = 1e-12f;  // per second

// The start, before anything is learned: the longer unused the less likely, from about half a
// minute on; much new text is less often continued than little, and long chains go on.
constexpr double kPriorRatePerS = 0.01;
constexpr double kPriorQuietS = 30;
constexpr double kPriorPower = -1.3;
constexpr float kPriorPerFresh = -0.3f;
constexpr float kPriorPerTurn = 0.15f;

// What Learned begins with: another number of anything is another head.
constexpr float kLogMax = 100;  // of a factor
constexpr std::array<uint32_t, 8> kLearnedHead = {
    1,  // of the ages' edges, the classes and the order
    HazardModel::kAges,
    ReuseTraits::kGaps,
    ReuseTraits::kReasons,
    ReuseTraits::kFreshes,
    ReuseTraits::kTurns,
    ReuseTraits::kDepths,
    ReuseTraits::kKinds};

struct AgeEdges {
  std::array<float, HazardModel::kAges + 1> at_s{};
  AgeEdges() {
    double edge_s = kFirstAgeS;
    for (uint32_t a = 1; a <= HazardModel::kAges; ++a, edge_s *= kAgeRatio)
      at_s[a] = static_cast<float>(edge_s);
  }
};
const AgeEdges kEdges;

void SetPrior(auto& factor, double log_value) {
  factor.log_prior = factor.log_value = static_cast<float>(log_value);
}

}  // namespace

HazardModel::HazardModel() : index_(size_t{kShapes} * kLevels * kAges) {
  for (uint32_t age = 0; age < kAges; ++age) {
    const double middle_s = (kEdges.at_s[age] + kEdges.at_s[age + 1]) / 2;
    SetPrior(base_[age],
             std::log(kPriorRatePerS) + kPriorPower * std::log1p(middle_s / kPriorQuietS));
  }
  for (int i = 0; i < static_cast<int>(by_fresh_.size()); ++i)
    SetPrior(by_fresh_[i], kPriorPerFresh * static_cast<float>(i - 3));
  for (int i = 0; i < static_cast<int>(by_turn_.size()); ++i)
    SetPrior(by_turn_[i], kPriorPerTurn * static_cast<float>(i - 2));
  for (uint32_t shape = 0; shape < kShapes; ++shape) {
    RefreshRates(shape);
    for (uint32_t level = 0; level < kLevels; ++level) RefreshLevel(shape, level);
  }
}

uint32_t HazardModel::AgeOf(uint64_t idle_us) {
  const float idle_in_first = static_cast<float>(idle_us) * static_cast<float>(1e-6 / kFirstAgeS);
  if (idle_in_first < 1) return 0;
  static const float kAgesPerDoubling = 1 / std::log2(static_cast<float>(kAgeRatio));
  const float age = 1 + std::log2(idle_in_first) * kAgesPerDoubling;
  return static_cast<uint32_t>(std::min(age, static_cast<float>(kAges - 1)));
}

float HazardModel::LogFactorOf(const ReuseTraits& t) const {
  return by_fresh_[t.fresh].log_value + by_turn_[t.turn].log_value + by_depth_[t.depth].log_value +
         by_kind_[t.kind].log_value;
}

uint32_t HazardModel::LevelOf(const ReuseTraits& traits) const {
  const float level = LogFactorOf(traits) / kLevelStep + kLevelMiddle + 0.5f;
  return static_cast<uint32_t>(std::clamp(level, 0.0f, static_cast<float>(kLevels - 1)));
}

void HazardModel::Observe(const ReuseTraits& t, uint64_t idle_us, Outcome outcome) {
  const uint32_t shape = ShapeOf(t);
  is_shape_used_[shape] = true;
  const auto idle_s = static_cast<float>(static_cast<double>(idle_us) * 1e-6);
  const uint32_t last_age = AgeOf(idle_us);
  const float factor = std::exp(LogFactorOf(t));
  const std::array<float, kAges>& rates = rates_[shape];
  Evidence& seen = seen_[shape];
  float expected_sum = 0;
  for (uint32_t age = 0; age <= last_age; ++age) {
    const float exposed_s = std::min(idle_s, kEdges.at_s[age + 1]) - kEdges.at_s[age];
    const float expected = std::clamp(rates[age] * factor * exposed_s, 0.0f, kExpectedMax);
    seen.expected_counts[age] += expected;
    expected_sum += expected;
  }
  const float use_count = outcome == Outcome::kUsed ? 1 : 0;
  seen.use_counts[last_age] += use_count;
  for (Factor* whole :
       {&by_fresh_[t.fresh], &by_turn_[t.turn], &by_depth_[t.depth], &by_kind_[t.kind]}) {
    whole->expected_count += expected_sum;
    whole->use_count += use_count;
  }
}

float HazardModel::ReuseChance(const ReuseTraits& t, uint64_t from_us, uint64_t to_us) const {
  const auto from_s = static_cast<float>(static_cast<double>(from_us) * 1e-6);
  const auto to_s = static_cast<float>(static_cast<double>(to_us) * 1e-6);
  const std::array<float, kAges>& rates = rates_[ShapeOf(t)];
  float expected = 0;
  for (uint32_t age = AgeOf(from_us); age <= AgeOf(to_us); ++age) {
    const float until_s = age + 1 == kAges ? to_s : std::min(to_s, kEdges.at_s[age + 1]);
    expected += rates[age] * std::max(until_s - std::max(from_s, kEdges.at_s[age]), 0.0f);
  }
  return 1 - std::exp(-expected * std::exp(LogFactorOf(t)));
}

// The mean of a Gamma posterior: (belief + uses) ÷ (belief + uses expected under the prior).
void HazardModel::Move(Factor* factor) {
  const float by_prior = factor->expected_count * std::exp(factor->log_prior - factor->log_value);
  const float target =
      factor->log_prior + std::log((kPriorUses + factor->use_count) / (kPriorUses + by_prior));
  factor->log_value += kFitShare * (target - factor->log_value);
  factor->use_count = factor->expected_count = 0;
}

void HazardModel::Fit() {
  for (uint32_t shape = 0; shape < kShapes; ++shape) {
    if (!is_shape_used_[shape]) continue;
    Evidence& seen = seen_[shape];
    for (uint32_t age = 0; age < kAges; ++age) {
      for (Factor* aged : {&base_[age], &GapOf(shape)[age], &ReasonOf(shape)[age]}) {
        aged->expected_count += seen.expected_counts[age];
        aged->use_count += seen.use_counts[age];
      }
    }
    seen = {};
  }
  const auto move_all = [](auto& factors) {
    for (Factor& factor : factors) Move(&factor);
  };
  move_all(base_);
  for (AgeFactors& factors : by_gap_) move_all(factors);
  for (AgeFactors& factors : by_reason_) move_all(factors);
  move_all(by_fresh_);
  move_all(by_turn_);
  move_all(by_depth_);
  move_all(by_kind_);
  for (uint32_t shape = 0; shape < kShapes; ++shape) RefreshRates(shape);
}

template <typename Model, typename Visit>
void HazardModel::ForEachFactor(Model& model, const Visit& visit) {
  const auto all = [&visit](auto& factors) {
    for (auto& factor : factors) visit(factor);
  };
  all(model.base_);
  for (auto& factors : model.by_gap_) all(factors);
  for (auto& factors : model.by_reason_) all(factors);
  all(model.by_fresh_);
  all(model.by_turn_);
  all(model.by_depth_);
  all(model.by_kind_);
}

std::vector<std::byte> HazardModel::Learned() const {
  std::vector<float> values;
  ForEachFactor(*this, [&](const Factor& factor) { values.push_back(factor.log_value); });
  std::vector<std::byte> learned(sizeof(kLearnedHead) + kShapes + values.size() * sizeof(float));
  std::memcpy(learned.data(), &kLearnedHead, sizeof(kLearnedHead));
  std::byte* next = learned.data() + sizeof(kLearnedHead);
  for (const bool is_used : is_shape_used_) *next++ = std::byte(is_used ? 1 : 0);
  std::memcpy(next, values.data(), values.size() * sizeof(float));
  return learned;
}

bool HazardModel::StartFrom(std::span<const std::byte> learned) {
  size_t count = 0;
  ForEachFactor(*this, [&](const Factor&) { ++count; });
  if (learned.size() != sizeof(kLearnedHead) + kShapes + count * sizeof(float)) return false;
  if (std::memcmp(learned.data(), &kLearnedHead, sizeof(kLearnedHead)) != 0) return false;
  std::vector<float> values(count);
  const std::byte* const shapes = learned.data() + sizeof(kLearnedHead);
  std::memcpy(values.data(), shapes + kShapes, count * sizeof(float));
  const auto is_log_rate = [](float value) { return std::abs(value) <= kLogMax; };  // no NaN is
  if (!std::all_of(values.begin(), values.end(), is_log_rate)) return false;
  size_t next = 0;
  ForEachFactor(*this, [&](Factor& factor) { factor.log_value = values[next++]; });
  for (uint32_t shape = 0; shape < kShapes; ++shape) {
    is_shape_used_[shape] = shapes[shape] != std::byte{0};
    RefreshRates(shape);
    for (uint32_t level = 0; level < kLevels; ++level) RefreshLevel(shape, level);
  }
  return true;
}

void HazardModel::RefreshRates(uint32_t shape) {
  for (uint32_t age = 0; age < kAges; ++age) {
    rates_[shape][age] = std::exp(base_[age].log_value + GapOf(shape)[age].log_value +
                                  ReasonOf(shape)[age].log_value);
  }
}

void HazardModel::RefreshSome() {
  for (uint32_t tried = 0; next_level_ == 0 && tried < kShapes; ++tried) {
    if (is_shape_used_[next_shape_]) break;
    next_shape_ = (next_shape_ + 1) % kShapes;
  }
  static_assert(kLevels % kRefreshesPerShape == 0);
  for (uint32_t i = 0; i < kLevels / kRefreshesPerShape; ++i) {
    RefreshLevel(next_shape_, next_level_++);
  }
  if (next_level_ < kLevels) return;
  next_level_ = 0;
  next_shape_ = (next_shape_ + 1) % kShapes;
}

void HazardModel::RefreshLevel(uint32_t shape, uint32_t level) {
  const std::array<float, kAges>& rates = rates_[shape];
  const float factor = std::exp((static_cast<float>(level) - kLevelMiddle) * kLevelStep);
  std::array<float, kAges> waits;    // share that is not used within the age
  std::array<float, kAges> spent_s;  // mean time spent in it
  for (uint32_t age = 0; age < kAges; ++age) {
    const float rate = std::max(rates[age] * factor, kRateMin);
    const float width_s = kEdges.at_s[age + 1] - kEdges.at_s[age];
    waits[age] = std::exp(-rate * width_s);
    spent_s[age] = rate * width_s < 1e-4f ? width_s : (1 - waits[age]) / rate;
  }
  float* const row = &index_[(size_t{shape} * kLevels + level) * kAges];
  for (uint32_t start = 0; start < kAges; ++start) {
    float alive = 1;
    float hits = 0;
    float cost_s = 0;
    float best = 0;
    for (uint32_t age = start; age < kAges; ++age) {
      hits += alive * (1 - waits[age]);
      cost_s += alive * spent_s[age];
      alive *= waits[age];
      best = std::max(best, hits / cost_s);
    }
    row[start] = best;
  }
}

}  // namespace terrace
