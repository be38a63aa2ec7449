#include "daemon/policy/admission.h"

#include <algorithm>
#include <array>
#include <vector>

#include "daemon/index/chunked_array.h"
#include "daemon/policy/eviction/hazard.h"
#include "daemon/policy/reuse_survey.h"
#include "daemon/policy/wear_governor.h"

namespace terrace {
namespace {

constexpr uint64_t kHorizonStartUs = 3600'000'000;  // until something was dropped below
constexpr uint64_t kHorizonMinUs = 60'000'000;
constexpr double kShareOfOneDrop = 0.001;    // in the mean idle time
constexpr float kShareOfOneBlock = 0.0005f;  // in the mean chance
constexpr float kWorthMin = 0.855f;          // of the mean chance: less is not written

class AdmitAll final : public AdmissionPolicy {
 public:
  bool Admits(const AdmissionRequest&) override { return true; }
};

enum class Rule : uint8_t { kAll, kHit, kPredicted, kRandom, kSecondUse };

// Answers for paths: the first answer about a block that a request was the last to use holds for
// all of them, and at both moments.
class PathAdmission final : public AdmissionPolicy {
 public:
  PathAdmission(Rule rule, const AdmissionOptions& options)
      : rule_(rule),
        history_({.capacity_blocks = options.capacity_blocks}),
        governor_(options.write_bytes_per_day) {}

  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override {
    if (id >= is_known_.size()) is_known_.resize(id + 1);
    is_known_[id] = true;
    history_.OnInsert(id, traits, now_us);
    survey_.OnInsert(id, traits.key, now_us);
  }
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override {
    known_run_.clear();
    for (const BlockId id : run) {
      if (IsKnown(id)) known_run_.push_back(id);
    }
    run = known_run_;
    history_.OnTouch(run, context);
    if (context.end_reason == protocol::EndReason::kUnknown) survey_.OnTouch(run, context.now_us);
  }
  void OnErase(BlockId id) override {
    if (!IsKnown(id)) return;
    is_known_[id] = false;
    history_.OnErase(id);
  }
  void OnDropBelow(uint64_t idle_us) override {
    horizon_us_ += kShareOfOneDrop * (static_cast<double>(idle_us) - horizon_us_);
  }

  bool Admits(const AdmissionRequest& request) override {
    if (!IsKnown(request.id)) OnInsert(request.id, request.traits, request.now_us);
    const HazardPolicy::LastRequest last = history_.last_request(request.id);
    answers_.Reach(last.index);
    Answer& answer = answers_[last.index];
    const bool is_new = answer.time_us != last.time_us + 1;
    if (is_new) answer = AnswerFor(request, last.time_us);
    mean_chance_ += kShareOfOneBlock * (answer.chance - mean_chance_);
    governor_.Ask(answer.worth, request.traits.byte_count, request.now_us);
    if (is_new) answer.is_admitted = answer.worth > 0 && governor_.Pays(answer.worth);
    if (!answer.is_admitted && !request.has_child_below) return false;
    governor_.Charge(request.traits.byte_count, request.now_us);
    return true;
  }

  // Of what leaves DRAM: that is what its answers are about.
  std::vector<std::byte> Learned() const override { return survey_.Learned(); }
  bool StartFrom(std::span<const std::byte> learned) override { return survey_.StartFrom(learned); }

 private:
  struct Answer {
    uint64_t time_us = 0;  // of the request, plus one
    float chance = 0;      // to be used again before the tier below would drop it
    float worth = 0;       // 0: not to be written
    bool is_admitted = false;
  };

  bool IsKnown(BlockId id) const { return id < is_known_.size() && is_known_[id]; }

  Answer AnswerFor(const AdmissionRequest& request, uint64_t last_us) {
    ReuseTraits traits = history_.TraitsOf(request.id);
    traits.fork = 0;  // most paths are left later: that this one was already says little
    const auto horizon_us = std::max(static_cast<uint64_t>(horizon_us_), kHorizonMinUs);
    const float chance = std::max(survey_.Chance(traits, horizon_us), 1e-6f);
    survey_.OnLeave(request.id, traits, request.now_us);
    return {.time_us = last_us + 1, .chance = chance, .worth = WorthOf(request, chance)};
  }

  float WorthOf(const AdmissionRequest& request, float chance) const {
    const bool was_used = history_.WasUsed(request.id);
    switch (rule_) {
      case Rule::kAll:
        return chance;
      case Rule::kHit:
        return was_used ? chance : 0;
      case Rule::kPredicted:
        return chance < kWorthMin * mean_chance_ ? 0 : chance;
      case Rule::kRandom:
        return static_cast<float>(
                   (request.now_us ^ uint64_t{request.id} << 32) * 0x9E3779B97F4A7C15u >> 44 | 1) *
               0x1p-20f;
      case Rule::kSecondUse:
        return was_used || history_.HasReturned(request.id) ? chance : 0;
    }
    return 0;
  }

  const Rule rule_;

  std::vector<bool> is_known_;  // by id
  std::vector<BlockId> known_run_;
  HazardPolicy history_;  // never asked for a victim
  ReuseSurvey survey_;
  WearGovernor governor_;
  ChunkedArray<Answer> answers_;  // by the history's request
  float mean_chance_ = 0;         // of a block that was asked for
  double horizon_us_ = kHorizonStartUs;
};

struct NamedRule {
  std::string_view name;
  Rule rule;
};
constexpr std::array<NamedRule, 5> kRules = {{{"all", Rule::kAll},
                                              {"hit", Rule::kHit},
                                              {"predicted", Rule::kPredicted},
                                              {"random", Rule::kRandom},
                                              {"second_use", Rule::kSecondUse}}};

}  // namespace

std::span<const std::string_view> AdmissionPolicyNames() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, kRules.size()> names;
    for (size_t i = 0; i < names.size(); ++i) names[i] = kRules[i].name;
    return names;
  }();
  return kNames;
}

std::unique_ptr<AdmissionPolicy> MakeAdmissionPolicy(std::string_view name,
                                                     const AdmissionOptions& options) {
  for (const NamedRule& named : kRules) {
    if (named.name != name) continue;
    if (named.rule == Rule::kAll && options.write_bytes_per_day == WearGovernor::kUnlimited) {
      return std::make_unique<AdmitAll>();
    }
    return std::make_unique<PathAdmission>(named.rule, options);
  }
  return nullptr;
}

}  // namespace terrace
