// `terrace plan`: how far memory goes for a model: bytes a token, tokens and sessions a tier, from
// which length on loading beats computing, and what a recorded trace would hit. No daemon needed.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "terrace/error.h"
#include "terrace/units.h"
#include "tools/replay/dense_trace.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/optimum.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/plan/capacity_plan.h"
#include "tools/terrace/plan/known_models.h"
#include "tools/terrace/plan/model_file.h"
#include "tools/terrace/plan/model_shape.h"
#include "tools/terrace/trace/trace_reader.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr uint64_t kContextTokensMax = uint64_t{1} << 32;
constexpr uint64_t kContextTokensOtherwise = 32768;  // where neither model nor person say
constexpr uint64_t kRequestsMax = 100'000'000;
constexpr std::array<uint64_t, 5> kLengths = {512, 2048, 8192, 32768, 131072};

// What a tier and those above it would hit of a trace: as the largest of them.
struct TraceHits {
  uint64_t block_count = 0;
  uint64_t lru_hits = 0;
  uint64_t optimum_hits = 0;
};

// A whole number, as large as one may be.
uint64_t Whole(double number) {
  constexpr double kMost = 1.8e19;  // below 2^64
  return static_cast<uint64_t>(std::min(number, kMost));
}

std::string FormatSpeed(double bytes_per_s) { return FormatBytes(Whole(bytes_per_s)) + "/s"; }

std::string FormatSeconds(double seconds) {
  return seconds < 0.001 ? fmt::format("{:.0f} us", seconds * 1e6)
                         : FormatMilliseconds(Whole(seconds * 1000 + 0.5));
}

class PlanVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("plan", "What tiers of given sizes are worth to a model");
    verb.AddOption("MODEL", model_,
                   "A model's config.json, its directory, or a name such as llama-3-70b");
    verb.AddFlag("--models", lists_models_, "List the models that are known by name");
    verb.AddOption("--context", context_text_, "Tokens of a session (default: the model's most)")
        .Type("TOKENS");
    verb.AddOption("--cache-dtype", shape_options_.cache_dtype,
                   "Type of the cache's elements, such as fp8 (default: the model's)");
    verb.AddOption("--tp", shape_options_.rank_count, "Tensor parallel ranks of an instance")
        .ShowDefault()
        .Between(uint32_t{1}, uint32_t{1024});
    verb.AddOption("--tier", tier_texts_,
                   "A tier from the fastest down, NAME=SIZE[@SPEED], e.g. nvme=4TiB@6GiB/s\n"
                   "(default: what each GiB holds)")
        .OneWord();
    verb.AddOption("--prefill", prefill_texts_,
                   "A measured prefill, TOKENS=SECONDS; better two lengths than one")
        .OneWord();
    verb.AddOption("--trace", trace_path_, "A request trace, as `terrace replay` takes")
        .Type("FILE");
    verb.AddOption("--block-tokens", block_tokens_,
                   "Tokens a block of the trace has (default: 256 with sessions, else 512)");
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (lists_models_) {
      PrintText(fmt::format("{}\n", fmt::join(KnownModelNames(), "\n")));
      return kExitOk;
    }
    for (const Error& error : {ReadModel(), ReadContext(), ReadTiers(), ReadPrefills()}) {
      if (error.ok()) continue;
      Fail("plan: " + error.sentence());
      return kExitUsage;
    }
    if (!trace_path_.empty() && !ReplayTrace()) return kExitFailed;
    if (is_json_) {
      PrintJson(ToJson());
    } else {
      PrintText(Render());
    }
    return kExitOk;
  }

 private:
  Error ReadModel() {
    if (model_.empty()) {
      return {StatusCode::kInvalid,
              "no model is named: give a config.json or a name of `terrace plan --models`"};
    }
    json config = json::parse(KnownModelConfig(model_), nullptr, false);
    if (!config.is_discarded()) return ReadModelShape(config, shape_options_, &shape_);
    TERRACE_RETURN_IF_REFUSED(ReadModelFile(model_, &config));
    return ReadModelShape(config, shape_options_, &shape_);
  }

  Error ReadContext() {
    context_tokens_ =
        shape_.context_tokens_max > 0 ? shape_.context_tokens_max : kContextTokensOtherwise;
    if (!context_text_.empty() && (!ParseBytes(context_text_, &context_tokens_) ||
                                   context_tokens_ == 0 || context_tokens_ > kContextTokensMax)) {
      return {StatusCode::kInvalid,
              fmt::format("--context '{}': expected a number of tokens of 1 to {}, such as 131072 "
                          "or 128K",
                          context_text_, kContextTokensMax)};
    }
    if (shape_.MayHold(context_tokens_)) return {};
    return {StatusCode::kInvalid,
            fmt::format("'{}' would need more than {} for a session of {} tokens: say a shorter "
                        "--context, or look whether the configuration is right",
                        model_, FormatBytes(kSessionBytesMax), context_tokens_)};
  }

  Error ReadTiers() {
    for (const std::string& text : tier_texts_) {
      if (const Error error = ParseTier(text, &tiers_.emplace_back()); !error.ok()) return error;
    }
    if (tiers_.empty()) tiers_ = {{.name = "1 GiB", .capacity_bytes = kGiB}};
    return {};
  }

  Error ReadPrefills() {
    std::vector<PrefillPoint> points;
    for (const std::string& text : prefill_texts_) {
      if (const Error error = ParsePrefill(text, &points.emplace_back()); !error.ok()) return error;
    }
    if (points.empty()) return {};
    cost_.emplace(points);
    if (const std::string why = WhyPrefillsDisagree(points, *cost_); !why.empty()) Fail(why);
    return {};
  }

  // The daemon stores copies: below DRAM lies what DRAM holds, and more only by what a tier is
  // larger.
  bool ReplayTrace() {
    Trace recorded;
    DenseTrace trace;
    std::string why;
    const TraceOptions options{.request_count_max = kRequestsMax, .block_tokens = block_tokens_};
    if (!ReadTrace(trace_path_, options, &recorded, &why)) return Fail(why) == kExitOk;
    if (recorded.cut_line != 0) Fail(CutLineText(trace_path_, recorded));
    if (!trace.Build(recorded, &why)) return Fail(trace_path_ + ": " + why) == kExitOk;
    asked_count_ = trace.asked_count();
    trace_block_tokens_ = trace.block_tokens();
    const LruCurve curve(trace);
    const NextUses next_uses(trace);
    uint64_t bytes = 0;
    for (const PlannedTier& tier : tiers_) {
      bytes = std::max(bytes, tier.capacity_bytes);
      const uint64_t block_bytes =
          std::max<uint64_t>(shape_.token_bytes() * trace_block_tokens_, 1);
      TraceHits hits{.block_count = bytes / block_bytes};
      const auto blocks = static_cast<uint32_t>(
          std::min<uint64_t>(hits.block_count, std::max(trace.unique_count(), 1U)));
      if (blocks > 0) {
        hits.lru_hits = curve.HitsAt(blocks);
        hits.optimum_hits = CountOptimumHits(trace, next_uses, blocks, EvictionOrder::kLeafFirst);
      }
      hits_.push_back(hits);
    }
    return true;
  }

  std::vector<uint64_t> Lengths() const {
    std::vector<uint64_t> lengths;
    for (const uint64_t length : kLengths) {
      if (length < context_tokens_) lengths.push_back(length);
    }
    lengths.push_back(context_tokens_);
    return lengths;
  }

  std::string Render() const {
    std::string text = RenderModel() + "\n" + RenderTiers();
    if (cost_) text += "\n" + RenderBreakEven();
    if (!hits_.empty()) text += "\n" + RenderTrace();
    return text;
  }

  std::string RenderModel() const {
    std::string text =
        fmt::format("{}, cache of {}: {} B ({}) a token", model_, shape_.cache_dtype,
                    FormatCount(shape_.token_bytes()), FormatBytes(shape_.token_bytes()));
    if (shape_options_.rank_count > 1) {
      text += fmt::format(" in {} ranks together", shape_options_.rank_count);
    }
    text += fmt::format("; a session of {} tokens needs {}\n", FormatCount(context_tokens_),
                        FormatBytes(shape_.session_bytes(context_tokens_)));
    using enum TextTable::Align;
    TextTable table({{"layers"},
                     {"count", kRight},
                     {"a token", kRight},
                     {"window", kRight},
                     {"state a session", kRight}});
    for (const KvKind& kind : shape_.kinds) {
      const uint64_t state_bytes = kind.layer_count * kind.state_bytes;
      table.AddRow({kind.name, FormatCount(kind.layer_count),
                    FormatBytes(kind.layer_count * kind.token_bytes),
                    kind.window_tokens == 0 ? "-" : FormatCount(kind.window_tokens) + " tokens",
                    state_bytes == 0 ? "-" : FormatBytes(state_bytes)});
    }
    return text + table.Render();
  }

  std::string RenderTiers() const {
    using enum TextTable::Align;
    TextTable table({{"tier"},
                     {"size", kRight},
                     {"tokens", kRight},
                     {"sessions", kRight},
                     {"a session is loaded in", kRight},
                     {"loading beats computing", kRight}});
    for (const PlannedTier& tier : tiers_) {
      table.AddRow({tier.name, FormatBytes(tier.capacity_bytes), FormatCount(TokensIn(tier)),
                    FormatCount(SessionsIn(tier)),
                    tier.bytes_per_s == 0 ? "-" : FormatSeconds(LoadSeconds(tier, context_tokens_)),
                    WorthLoading(tier)});
    }
    return table.Render();
  }

  std::string RenderBreakEven() const {
    using enum TextTable::Align;
    TextTable table({{"prefix", kRight},
                     {"bytes", kRight},
                     {"computed in", kRight},
                     {"loading is faster above", kRight}});
    for (const uint64_t length : Lengths()) {
      table.AddRow({FormatCount(length), FormatBytes(shape_.session_bytes(length)),
                    FormatSeconds(cost_->Seconds(length)),
                    FormatSpeed(BreakEvenBytesPerSecond(shape_, *cost_, length))});
    }
    return table.Render();
  }

  std::string RenderTrace() const {
    using enum TextTable::Align;
    TextTable table(
        {{"down to tier"}, {"blocks", kRight}, {"hit with LRU", kRight}, {"at best", kRight}});
    for (size_t i = 0; i < tiers_.size(); ++i) {
      table.AddRow({tiers_[i].name, FormatCount(hits_[i].block_count),
                    FormatShare(hits_[i].lru_hits, asked_count_),
                    FormatShare(hits_[i].optimum_hits, asked_count_)});
    }
    const char* const about_copies =
        tiers_.size() > 1 ? "a tier holds copies of what is above it: sizes do not add up\n" : "";
    return fmt::format("{}: {} blocks of {} tokens are asked for\n", trace_path_,
                       FormatCount(asked_count_), trace_block_tokens_) +
           table.Render() + about_copies;
  }

  uint64_t TokensIn(const PlannedTier& tier) const {
    return shape_.token_bytes() == 0 ? 0 : tier.capacity_bytes / shape_.token_bytes();
  }
  uint64_t SessionsIn(const PlannedTier& tier) const {
    return tier.capacity_bytes / std::max<uint64_t>(shape_.session_bytes(context_tokens_), 1);
  }
  double LoadSeconds(const PlannedTier& tier, uint64_t token_count) const {
    return static_cast<double>(shape_.session_bytes(token_count)) /
           static_cast<double>(tier.bytes_per_s);
  }
  std::optional<uint64_t> LoadFrom(const PlannedTier& tier) const {
    if (!cost_ || tier.bytes_per_s == 0) return std::nullopt;
    return LoadFromTokens(shape_, *cost_, tier.bytes_per_s, context_tokens_);
  }
  std::string WorthLoading(const PlannedTier& tier) const {
    if (!cost_ || tier.bytes_per_s == 0) return "-";
    const std::optional<uint64_t> from = LoadFrom(tier);
    if (!from) return "never";
    return *from == 1 ? "always" : "from " + FormatCount(*from) + " tokens";
  }

  json ToJson() const {
    json kinds = json::array();
    for (const KvKind& kind : shape_.kinds) {
      kinds.push_back({{"name", kind.name},
                       {"layer_count", kind.layer_count},
                       {"token_bytes", kind.layer_count * kind.token_bytes},
                       {"window_tokens", kind.window_tokens},
                       {"state_bytes", kind.layer_count * kind.state_bytes}});
    }
    json document = {{"model", model_},
                     {"cache_dtype", shape_.cache_dtype},
                     {"rank_count", shape_options_.rank_count},
                     {"token_bytes", shape_.token_bytes()},
                     {"context_tokens", context_tokens_},
                     {"session_bytes", shape_.session_bytes(context_tokens_)},
                     {"kinds", kinds},
                     {"tiers", json::array()},
                     {"break_even", json::array()}};
    for (size_t i = 0; i < tiers_.size(); ++i) document["tiers"].push_back(TierJson(i));
    if (cost_) {
      for (const uint64_t length : Lengths()) {
        document["break_even"].push_back(
            {{"tokens", length},
             {"bytes", shape_.session_bytes(length)},
             {"prefill_s", cost_->Seconds(length)},
             {"bytes_per_s", BreakEvenBytesPerSecond(shape_, *cost_, length)}});
      }
    }
    return document;
  }

  json TierJson(size_t index) const {
    const PlannedTier& tier = tiers_[index];
    const bool has_speed = tier.bytes_per_s > 0;
    const std::optional<uint64_t> from = LoadFrom(tier);
    json row = {{"name", tier.name},
                {"capacity_bytes", tier.capacity_bytes},
                {"bytes_per_s", has_speed ? json(tier.bytes_per_s) : json()},
                {"token_count", TokensIn(tier)},
                {"session_count", SessionsIn(tier)},
                {"session_load_s", has_speed ? json(LoadSeconds(tier, context_tokens_)) : json()},
                {"load_from_tokens", from ? json(*from) : json()}};
    if (hits_.empty()) return row;
    const TraceHits& hits = hits_[index];
    row["trace"] = {{"block_count", hits.block_count},
                    {"asked_blocks", asked_count_},
                    {"lru_hit_blocks", hits.lru_hits},
                    {"optimum_hit_blocks", hits.optimum_hits}};
    return row;
  }

  std::string model_;
  bool lists_models_ = false;
  std::string context_text_;
  ShapeOptions shape_options_;
  std::vector<std::string> tier_texts_;
  std::vector<std::string> prefill_texts_;
  std::string trace_path_;
  uint32_t block_tokens_ = 0;
  bool is_json_ = false;

  ModelShape shape_;
  uint64_t context_tokens_ = 0;
  std::vector<PlannedTier> tiers_;
  std::optional<PrefillCost> cost_;
  std::vector<TraceHits> hits_;  // one a tier, with a trace
  uint64_t asked_count_ = 0;
  uint32_t trace_block_tokens_ = 0;
};

}  // namespace

std::unique_ptr<Verb> MakePlanVerb() { return std::make_unique<PlanVerb>(); }

}  // namespace terrace::tools
