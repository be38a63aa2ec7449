// HazardModel: how soon a prefix that was just used will be used again, learned while serving.
//
// The rate of reuse at idle time t is a product: a shape over t, which depends on the last gap
// between uses and on why the request ended, times one factor for each other trait. Factors are
// fitted to a window of observed uses: each moves towards (uses seen) ÷ (uses expected), held to
// its prior by a few uses' worth of belief, so that a trait rarely seen changes little.
//
// What eviction asks for is the *index*: expected hits per block-second over the best horizon (the
// Gittins index). A prefix that is quiet now and due in a minute ranks by that minute.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// What is known about a block at its last use, in few classes.
struct ReuseTraits {
  static constexpr uint32_t kGaps = 10;
  static constexpr uint32_t kReasons = 3;
  static constexpr uint32_t kFreshes = 10;
  static constexpr uint32_t kTurns = 6;
  static constexpr uint32_t kDepths = 8;
  static constexpr uint32_t kKinds = 4;
  static constexpr uint32_t kForks = 3;

  uint8_t gap = 0;         // 0: no earlier use known; else log4 of the seconds since it, from 1
  bool is_shared = false;  // several branches continue it
  uint8_t reason = 0;      // unknown, tool call, end of turn
  uint8_t fresh = 0;       // log2 of the blocks that were new
  uint8_t turn = 0;        // log2 of the requests of its chain
  uint8_t depth = 0;       // log4 of the blocks of the path
  uint8_t kind = 0;        // new, used before, two branches, more
  uint8_t fork = 0;        // a later request left its path: not, in the first half, behind it
};

class HazardModel {
 public:
  static constexpr uint32_t kAges = 26;
  static constexpr uint32_t kRefreshesPerShape = 10;
  static constexpr uint32_t kShapes = 2 * ReuseTraits::kGaps * ReuseTraits::kReasons;

  HazardModel();

  // The class of an idle time.
  static uint32_t AgeOf(uint64_t idle_us);

  // Of a block idle for this long since its last use, and then used or still waiting.
  enum class Outcome : uint8_t { kWaits, kUsed };
  void Observe(const ReuseTraits& traits, uint64_t idle_us, Outcome outcome);
  // Of one that was of this kind only since it had been idle for `from_us`.
  void ObserveFrom(const ReuseTraits& traits, uint64_t from_us, uint64_t idle_us, Outcome outcome);
  // Moves the factors to what was observed since the last Fit, and forgets the observations.
  void Fit();
  // Brings the next indexes up to date: those of a shape in use in kRefreshesPerShape calls.
  void RefreshSome();

  // Of a block idle since `from_us`, that it is used before it has been idle for `to_us`.
  float ReuseChance(const ReuseTraits& traits, uint64_t from_us, uint64_t to_us) const;

  float index(const ReuseTraits& traits, uint32_t age) const {
    return index_[(ShapeOf(traits) * kLevels + LevelOf(traits)) * kAges + age];
  }

  // The factors, little-endian, behind a head that says how many of each there are.
  std::vector<std::byte> Learned() const;
  // Goes on from there, or is as it was and false: another head or size, or a value that no model
  // says. Of whatever is taken, what is learned from there on can be taken, too.
  bool StartFrom(std::span<const std::byte> learned);

 private:
  static constexpr uint32_t kLevels = 80;  // classes of the product of the factors without shape

  struct Factor {
    float log_value = 0;
    float value = 1;  // its exp
    float log_prior = 0;
    float use_count = 0;
    float expected_count = 0;
  };
  using AgeFactors = std::array<Factor, kAges>;
  // Since the last Fit, of one shape. What is expected of an age passed through is its own uses
  // times the factors of all who passed: so an observation is noted where it ended, and nowhere
  // else.
  struct Evidence {
    std::array<float, kAges> use_counts{};
    std::array<float, kAges> expected_counts{};  // in the age where it ended
    std::array<float, kAges> factor_sums{};      // of those that ended there
  };
  // Of one shape, without the factors that have none.
  struct Rates {
    std::array<float, kAges> per_s{};
    std::array<float, kAges> uses{};         // expected while an age passes
    std::array<float, kAges> uses_before{};  // expected in the ages before
    std::array<float, kAges> factor_max{};   // that expects no age up to this to bring too many
  };

  static uint32_t GapRowOf(const ReuseTraits& t) {
    return t.gap + (t.is_shared ? ReuseTraits::kGaps : 0);
  }
  static uint32_t ShapeOf(const ReuseTraits& t) {
    return GapRowOf(t) * ReuseTraits::kReasons + t.reason;
  }
  // How an observation ended: so many uses of a rate times `factor`.
  struct End {
    uint64_t idle_us;
    uint32_t age;  // its class
    float use_count;
    float factor;  // < 0: takes back that it passed the ages up to there
  };
  void Note(const ReuseTraits& traits, const End& end);
  uint32_t LevelOf(const ReuseTraits& traits) const;
  float LogFactorOf(const ReuseTraits& traits) const;
  float FactorOf(const ReuseTraits& traits) const;
  void RefreshLevel(uint32_t shape, uint32_t level);
  void RefreshRates(uint32_t shape);
  AgeFactors& GapOf(uint32_t shape) { return by_gap_[shape / ReuseTraits::kReasons]; }
  AgeFactors& ReasonOf(uint32_t shape) { return by_reason_[shape % ReuseTraits::kReasons]; }
  static void SetLog(Factor* factor, float log_value);
  static void Move(Factor* factor);
  // Each factor of `model`, always in the same order.
  template <typename Model, typename Visit>
  static void ForEachFactor(Model& model, const Visit& visit);

  AgeFactors base_;
  std::array<AgeFactors, 2 * ReuseTraits::kGaps> by_gap_;
  std::array<AgeFactors, ReuseTraits::kReasons> by_reason_;
  std::array<Factor, ReuseTraits::kFreshes> by_fresh_;
  std::array<Factor, ReuseTraits::kTurns> by_turn_;
  std::array<Factor, ReuseTraits::kDepths> by_depth_;
  std::array<Factor, ReuseTraits::kKinds> by_kind_;
  std::array<Factor, ReuseTraits::kForks> by_fork_;
  std::array<bool, kShapes> is_shape_used_{};
  std::array<Evidence, kShapes> seen_{};
  std::array<Rates, kShapes> rates_{};
  std::vector<float> index_;  // [shape][level][age]
  uint32_t next_shape_ = 0;
  uint32_t next_level_ = 0;
};

}  // namespace terrace
