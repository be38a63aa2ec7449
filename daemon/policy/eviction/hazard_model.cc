#include "daemon/policy/eviction/hazard_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

namespace terrace {
namespace {

constexpr double kFirstAgeS = 0.5;
constexpr double kAgeRatio = 1.6;
constexpr float kPriorUses = 5;     // the belief in a prior, in uses
constexpr float kFitShare = 0.12f;  // of the way, at each Fit; × 8 factors of a rate < 2: stable
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
constexpr float kPriorOfFork = -1;

// A factor stays within e^±10 of its prior, farther than a window of uses takes it: so the product
// of the eight of a rate is finite, and so is what moves one back.
constexpr float kLogMax = 10;
constexpr float kLogRounding = 1e-3f;

// What Learned begins with: another number of anything is another head.
constexpr std::array<uint32_t, 9> kLearnedHead = {
    1,  // of the ages' edges, the classes and the order
    HazardModel::kAges,
    ReuseTraits::kGaps,
    ReuseTraits::kReasons,
    ReuseTraits::kFreshes,
    ReuseTraits::kTurns,
    ReuseTraits::kDepths,
    ReuseTraits::kKinds,
    ReuseTraits::kForks};

struct AgeEdges {
  std::array<float, HazardModel::kAges + 1> at_s{};
  std::array<float, HazardModel::kAges> width_s{};
  AgeEdges() {
    double edge_s = kFirstAgeS;
    for (uint32_t a = 1; a <= HazardModel::kAges; ++a, edge_s *= kAgeRatio)
      at_s[a] = static_cast<float>(edge_s);
    for (uint32_t a = 0; a < HazardModel::kAges; ++a) width_s[a] = at_s[a + 1] - at_s[a];
  }
};
const AgeEdges kEdges;

// The ages by the high bits of an idle time's float: cells of an eighth of an octave, narrower than
// any age, so that one comparison with an edge says the rest.
struct AgeCells {
  static constexpr uint32_t kCellBits = 20;
  static uint32_t CellOf(float idle_s) { return std::bit_cast<uint32_t>(idle_s) >> kCellBits; }
  const uint32_t first_cell = CellOf(kEdges.at_s[1]);
  std::vector<uint8_t> ages;  // at the beginning of the cell
  AgeCells() {
    const uint32_t past_last = CellOf(kEdges.at_s[HazardModel::kAges]) + 1;
    uint8_t age = 0;
    for (uint32_t cell = first_cell; cell < past_last; ++cell) {
      const auto begin_s = std::bit_cast<float>(cell << kCellBits);
      while (age + 1u < HazardModel::kAges && begin_s >= kEdges.at_s[age + 1]) ++age;
      ages.push_back(age);
    }
  }
};
const AgeCells kCells;

}  // namespace

HazardModel::HazardModel() : index_(size_t{kShapes} * kLevels * kAges) {
  const auto set_prior = [](Factor* factor, double log_value) {
    factor->log_prior = static_cast<float>(log_value);
    SetLog(factor, factor->log_prior);
  };
  for (uint32_t age = 0; age < kAges; ++age) {
    const double middle_s = (kEdges.at_s[age] + kEdges.at_s[age + 1]) / 2;
    set_prior(&base_[age],
              std::log(kPriorRatePerS) + kPriorPower * std::log1p(middle_s / kPriorQuietS));
  }
  for (int i = 0; i < static_cast<int>(by_fresh_.size()); ++i)
    set_prior(&by_fresh_[i], kPriorPerFresh * static_cast<float>(i - 3));
  for (int i = 0; i < static_cast<int>(by_turn_.size()); ++i)
    set_prior(&by_turn_[i], kPriorPerTurn * static_cast<float>(i - 2));
  for (uint32_t i = 1; i < by_fork_.size(); ++i) set_prior(&by_fork_[i], kPriorOfFork);
  for (uint32_t shape = 0; shape < kShapes; ++shape) RefreshRates(shape);
  // A shape of which nothing is learned is as any other.
  for (uint32_t level = 0; level < kLevels; ++level) RefreshLevel(0, level);
  const std::span indexes(index_);
  for (uint32_t shape = 1; shape < kShapes; ++shape) {
    std::ranges::copy(indexes.first(size_t{kLevels} * kAges),
                      indexes.subspan(size_t{shape} * kLevels * kAges).begin());
  }
}

uint32_t HazardModel::AgeOf(uint64_t idle_us) {
  const auto idle_s = static_cast<float>(static_cast<double>(idle_us) * 1e-6);
  const uint32_t cell = AgeCells::CellOf(idle_s);
  if (cell < kCells.first_cell) return 0;
  if (cell - kCells.first_cell >= kCells.ages.size()) return kAges - 1;
  const uint32_t age = kCells.ages[cell - kCells.first_cell];
  return idle_s < kEdges.at_s[age + 1] ? age : std::min(age + 1, kAges - 1);
}

float HazardModel::LogFactorOf(const ReuseTraits& t) const {
  return by_fresh_[t.fresh].log_value + by_turn_[t.turn].log_value + by_depth_[t.depth].log_value +
         by_kind_[t.kind].log_value + by_fork_[t.fork].log_value;
}

uint32_t HazardModel::LevelOf(const ReuseTraits& traits) const {
  const float level = LogFactorOf(traits) / kLevelStep + kLevelMiddle + 0.5f;
  return static_cast<uint32_t>(std::clamp(level, 0.0f, static_cast<float>(kLevels - 1)));
}

float HazardModel::FactorOf(const ReuseTraits& t) const {
  return by_fresh_[t.fresh].value * by_turn_[t.turn].value * by_depth_[t.depth].value *
         by_kind_[t.kind].value * by_fork_[t.fork].value;
}

void HazardModel::SetLog(Factor* factor, float log_value) {
  factor->log_value = log_value;
  factor->value = std::exp(log_value);
}

void HazardModel::Observe(const ReuseTraits& t, uint64_t idle_us, Outcome outcome) {
  ObserveFrom(t, 0, idle_us, outcome);
}

void HazardModel::ObserveFrom(const ReuseTraits& t, uint64_t from_us, uint64_t idle_us,
                              Outcome outcome) {
  const uint32_t shape = ShapeOf(t);
  is_shape_used_[shape] = true;
  const uint32_t age = AgeOf(idle_us);
  const float factor = std::min(FactorOf(t), rates_[shape].factor_max[age]);
  const float use_count = outcome == Outcome::kUsed ? 1 : 0;
  Note(t, {.idle_us = idle_us, .age = age, .use_count = use_count, .factor = factor});
  if (from_us > 0) {
    Note(t, {.idle_us = from_us, .age = AgeOf(from_us), .use_count = 0, .factor = -factor});
  }
}

void HazardModel::Note(const ReuseTraits& t, const End& end) {
  const uint32_t shape = ShapeOf(t);
  const auto idle_s = static_cast<float>(static_cast<double>(end.idle_us) * 1e-6);
  const Rates& rates = rates_[shape];
  const float exposed_s = std::clamp(idle_s - kEdges.at_s[end.age], 0.0f, kEdges.width_s[end.age]);
  const float expected = rates.per_s[end.age] * end.factor * exposed_s;
  Evidence& seen = seen_[shape];
  seen.expected_counts[end.age] += expected;
  seen.factor_sums[end.age] += end.factor;
  seen.use_counts[end.age] += end.use_count;
  const float expected_sum = expected + end.factor * rates.uses_before[end.age];
  for (Factor* whole : {&by_fresh_[t.fresh], &by_turn_[t.turn], &by_depth_[t.depth],
                        &by_kind_[t.kind], &by_fork_[t.fork]}) {
    whole->expected_count += expected_sum;
    whole->use_count += end.use_count;
  }
}

float HazardModel::ReuseChance(const ReuseTraits& t, uint64_t from_us, uint64_t to_us) const {
  const auto from_s = static_cast<float>(static_cast<double>(from_us) * 1e-6);
  const auto to_s = static_cast<float>(static_cast<double>(to_us) * 1e-6);
  const std::array<float, kAges>& rates = rates_[ShapeOf(t)].per_s;
  float expected = 0;
  for (uint32_t age = AgeOf(from_us); age <= AgeOf(to_us); ++age) {
    const float until_s = age + 1 == kAges ? to_s : std::min(to_s, kEdges.at_s[age + 1]);
    expected += rates[age] * std::max(until_s - std::max(from_s, kEdges.at_s[age]), 0.0f);
  }
  return 1 - std::exp(-expected * FactorOf(t));
}

// The mean of a Gamma posterior: (belief + uses) ÷ (belief + uses expected under the prior).
void HazardModel::Move(Factor* factor) {
  const float by_prior = std::max(  // what is taken back may be rounded below 0
      0.0f, factor->expected_count * std::exp(factor->log_prior - factor->log_value));
  const float target =
      factor->log_prior + std::log((kPriorUses + factor->use_count) / (kPriorUses + by_prior));
  const float moved = factor->log_value + kFitShare * (target - factor->log_value);
  SetLog(factor, std::clamp(moved, factor->log_prior - kLogMax, factor->log_prior + kLogMax));
  factor->use_count = factor->expected_count = 0;
}

void HazardModel::Fit() {
  for (uint32_t shape = 0; shape < kShapes; ++shape) {
    if (!is_shape_used_[shape]) continue;
    Evidence& seen = seen_[shape];
    float passed = 0;  // factors of those that ended later
    for (uint32_t age = kAges; age-- > 0;) {
      const float expected = seen.expected_counts[age] + rates_[shape].uses[age] * passed;
      passed += seen.factor_sums[age];
      for (Factor* aged : {&base_[age], &GapOf(shape)[age], &ReasonOf(shape)[age]}) {
        aged->expected_count += expected;
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
  move_all(by_fork_);
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
  all(model.by_fork_);
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
  const std::span<const std::byte> shapes = learned.subspan(sizeof(kLearnedHead), kShapes);
  if (!std::ranges::all_of(shapes, [](std::byte used) { return used <= std::byte{1}; })) {
    return false;
  }
  std::vector<float> values(count);
  std::memcpy(values.data(), shapes.data() + kShapes, count * sizeof(float));
  size_t next = 0;
  bool are_bounded = true;
  ForEachFactor(*this, [&](const Factor& factor) {  // no NaN is near anything
    are_bounded &= std::abs(values[next++] - factor.log_prior) <= kLogMax + kLogRounding;
  });
  if (!are_bounded) return false;
  next = 0;
  ForEachFactor(*this, [&](Factor& factor) { SetLog(&factor, values[next++]); });
  for (uint32_t shape = 0; shape < kShapes; ++shape) {
    is_shape_used_[shape] = shapes[shape] != std::byte{0};
    RefreshRates(shape);
    for (uint32_t level = 0; level < kLevels; ++level) RefreshLevel(shape, level);
  }
  return true;
}

void HazardModel::RefreshRates(uint32_t shape) {
  Rates& rates = rates_[shape];
  float before = 0;
  float highest = kRateMin;
  for (uint32_t age = 0; age < kAges; ++age) {
    rates.per_s[age] = base_[age].value * GapOf(shape)[age].value * ReasonOf(shape)[age].value;
    rates.uses[age] = rates.per_s[age] * kEdges.width_s[age];
    rates.uses_before[age] = before;
    before += rates.uses[age];
    highest = std::max(highest, rates.uses[age]);
    rates.factor_max[age] = kExpectedMax / highest;
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

// The best horizon from an age on is the age alone, or it and the best from the next one on, which
// may in turn end before the last age: stretches are merged while what follows ranks higher.
void HazardModel::RefreshLevel(uint32_t shape, uint32_t level) {
  struct Stretch {  // of ages; of one block that is idle at its start
    float hits;
    float cost_s;
    float waits;  // share that is not used in it
  };
  std::array<Stretch, kAges> later;  // those behind, the next one last
  uint32_t later_count = 0;
  const float factor = std::exp((static_cast<float>(level) - kLevelMiddle) * kLevelStep);
  float* const row = &index_[(size_t{shape} * kLevels + level) * kAges];
  for (uint32_t age = kAges; age-- > 0;) {
    const float rate = std::max(rates_[shape].per_s[age] * factor, kRateMin);
    const float width_s = kEdges.width_s[age];
    const float waits = std::exp(-rate * width_s);
    Stretch best{.hits = 1 - waits,
                 .cost_s = rate * width_s < 1e-4f ? width_s : (1 - waits) / rate,
                 .waits = waits};
    while (later_count > 0) {
      const Stretch& next = later[later_count - 1];
      if (next.hits * best.cost_s <= best.hits * next.cost_s) break;
      best.hits += best.waits * next.hits;
      best.cost_s += best.waits * next.cost_s;
      best.waits *= next.waits;
      --later_count;
    }
    later[later_count++] = best;
    row[age] = best.hits / best.cost_s;
  }
}

}  // namespace terrace
