// `terrace replay`: what each eviction policy would have hit on a recorded trace, beside the
// offline optimum; no daemon needed.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "daemon/eviction/policies.h"
#include "tools/replay/dense_trace.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/optimum.h"
#include "tools/replay/replay_cache.h"
#include "tools/terrace/text_table.h"
#include "tools/terrace/verb.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kCurvePoints = 64;
constexpr uint64_t kProgressStepMask = 0xFF;  // requests between two strokes of the bar

struct Capacity {
  std::string text;  // as given: "5%" or "20000"
  uint32_t block_count = 0;
};

struct Replayed {
  std::string policy;
  const Capacity* capacity = nullptr;
  uint64_t hit_count = 0;
  uint64_t eviction_count = 0;
  uint64_t warm_request = 0;  // the first request after which the tier was full; 0: it never was
  uint64_t warm_hit_count = 0;
  uint64_t warm_touch_count = 0;  // after it
};

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// "12.5%" of `unique_count`, or a number of blocks. 0 if it is neither or nothing.
uint32_t ParseCapacity(const std::string& text, uint32_t unique_count) {
  const bool is_share = text.ends_with('%');
  const char* const end = text.data() + text.size() - (is_share ? 1 : 0);
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !(value > 0)) return 0;
  if (is_share) value = std::max(std::floor(value / 100 * unique_count + 0.5), 1.0);
  return static_cast<uint32_t>(std::min(value, 4294967294.0));
}

// One line on a terminal, nothing elsewhere.
class Progress {
 public:
  Progress() : is_shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (is_shown_) fmt::print(stderr, "\r\x1b[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Show(const std::string& what, uint64_t done, uint64_t all) const {
    if (!is_shown_) return;
    constexpr uint64_t kWidth = 32;
    const auto filled = static_cast<int>(kWidth * done / std::max<uint64_t>(all, 1));
    fmt::print(stderr, "\r\x1b[K[{:#<{}}{: <{}}] {}", "", filled, "", kWidth - filled, what);
    std::fflush(stderr);
  }

 private:
  const bool is_shown_;
};

class ReplayVerb : public Verb {
 public:
  CLI::App* Declare(CLI::App& parent) override {
    CLI::App* verb = parent.add_subcommand("replay", "Compare eviction policies on a trace");
    verb->add_option("TRACE", trace_path_, "JSON lines, plain or gzip'd, with hash_ids")
        ->required();
    verb->add_option("--policy", policies_, "Policies to replay (default: all)")->delimiter(',');
    verb->add_option("--capacity", capacity_texts_,
                     "Blocks of the tier, or a share of the trace's blocks such as 5%")
        ->delimiter(',');
    verb->add_option("--requests", request_count_max_, "Read no more requests than this")
        ->check(CLI::PositiveNumber);
    verb->add_option("--block-tokens", block_tokens_,
                     "Tokens a block of the trace has (default: 256 with sessions, else 512)");
    verb->add_flag("--free", is_free_, "Evict any block, not leaves only: as papers measure");
    verb->add_flag("--no-hints", has_no_hints_, "Ignore why requests ended");
    verb->add_option("--csv", csv_path_, "Also write the table to this file")->type_name("FILE");
    DeclareJson(*verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (policies_.empty()) {
      const auto names = EvictionPolicyNames();
      policies_.assign(names.begin(), names.end());
    }
    for (const std::string& name : policies_) {
      if (MakeEvictionPolicy(name, 1) != nullptr) continue;
      return Usage(fmt::format("there is no policy '{}'; there are {}", name,
                               fmt::join(EvictionPolicyNames(), ", ")));
    }
    if (!ReadInput()) return kExitFailed;
    for (const std::string& text : capacity_texts_) {
      capacities_.push_back({text, ParseCapacity(text, trace_.unique_count())});
      if (capacities_.back().block_count > 0) continue;
      return Usage(
          fmt::format("--capacity {} is no number of blocks above 0, nor a share like 5%", text));
    }
    ReplayAll();
    if (!csv_path_.empty() && !WriteCsv()) return kExitFailed;
    if (is_json_) {
      PrintJson(ToJson());
    } else {
      PrintTables();
    }
    return kExitOk;
  }

 private:
  static ExitCode Usage(std::string_view message) {
    Fail(fmt::format("replay: {}. See `terrace replay --help`", message));
    return kExitUsage;
  }

  bool ReadInput() {
    Trace recorded;
    std::string why;
    const TraceOptions options{.request_count_max = request_count_max_,
                               .block_tokens = block_tokens_};
    if (!ReadTrace(trace_path_, options, &recorded, &why)) return Fail(why) == kExitOk;
    if (has_no_hints_) {
      for (TraceRequest& request : recorded.requests) {
        request.end_reason = protocol::EndReason::kUnknown;
      }
    }
    if (!trace_.Build(recorded, &why)) return Fail(trace_path_ + ": " + why) == kExitOk;
    if (trace_.touch_count() > 0) return true;
    return Fail(fmt::format("trace {} has no full block of {} tokens: see --block-tokens",
                            trace_path_, trace_.block_tokens())) == kExitOk;
  }

  void ReplayAll() {
    const Progress progress;
    const NextUses next_uses(trace_);
    for (const Capacity& capacity : capacities_) {
      progress.Show("optimum at " + capacity.text, 0, 1);
      optimum_hits_.push_back(
          CountOptimumHits(trace_, next_uses, capacity.block_count, EvictionOrder::kLeafFirst));
      for (const std::string& policy : policies_) {
        rows_.push_back(ReplayOne(policy, capacity, progress));
      }
    }
  }

  Replayed ReplayOne(const std::string& name, const Capacity& capacity,
                     const Progress& progress) const {
    Replayed row{.policy = name, .capacity = &capacity};
    const auto policy = MakeEvictionPolicy(name, capacity.block_count);
    const EvictionOrder order = is_free_ ? EvictionOrder::kFree : EvictionOrder::kLeafFirst;
    ReplayCache cache(trace_, {.capacity_blocks = capacity.block_count, .order = order}, *policy);
    for (size_t r = 0; r < trace_.request_count(); ++r) {
      if ((r & kProgressStepMask) == 0) {
        progress.Show(name + " at " + capacity.text, r, trace_.request_count());
      }
      const uint32_t hit_count = cache.Serve(r);
      row.hit_count += hit_count;
      if (row.warm_request > 0) {
        row.warm_hit_count += hit_count;
        row.warm_touch_count += trace_.path(r).size();
      } else if (cache.resident_count() == capacity.block_count) {
        row.warm_request = r + 1;
      }
    }
    row.eviction_count = cache.eviction_count();
    return row;
  }

  const Replayed& RowOf(size_t policy_index, size_t capacity_index) const {
    return rows_[capacity_index * policies_.size() + policy_index];
  }

  void PrintTables() const {
    std::string text = fmt::format(
        "{} requests, {} block touches, {} blocks of {} tokens; {} eviction\n\nblock hit rate, % "
        "(prefix hits; capacity as given)\n",
        FormatCount(trace_.request_count()), FormatCount(trace_.touch_count()),
        FormatCount(trace_.unique_count()), trace_.block_tokens(),
        is_free_ ? "free" : "leaf-first");
    std::vector<TextTable::Column> columns = {{.title = "policy"}};
    for (const Capacity& capacity : capacities_) {
      columns.push_back({capacity.text, TextTable::Align::kRight});
    }
    columns.push_back({"prefill tokens saved", TextTable::Align::kRight});
    TextTable table(columns);
    for (size_t p = 0; p < policies_.size(); ++p) {
      std::vector<std::string> cells = {policies_[p]};
      for (size_t c = 0; c < capacities_.size(); ++c) {
        cells.push_back(
            fmt::format("{:.2f}", Percent(RowOf(p, c).hit_count, trace_.touch_count())));
      }
      cells.push_back(
          FormatCount(RowOf(p, capacities_.size() - 1).hit_count * trace_.block_tokens()));
      table.AddRow(std::move(cells));
    }
    std::vector<std::string> cells = {"optimum"};
    for (const uint64_t hits : optimum_hits_) {
      cells.push_back(fmt::format("{:.2f}", Percent(hits, trace_.touch_count())));
    }
    cells.push_back(FormatCount(optimum_hits_.back() * trace_.block_tokens()));
    table.AddRow(std::move(cells));
    text += table.Render();
    text += fmt::format("tokens saved: at {}. Full after request", capacities_.back().text);
    for (size_t c = 0; c < capacities_.size(); ++c) {
      const uint64_t request = RowOf(0, c).warm_request;
      text += fmt::format("{} {} ({})", c == 0 ? "" : ",",
                          request == 0 ? "never" : FormatCount(request), capacities_[c].text);
    }
    PrintText(text + "\n");
  }

  nlohmann::json ToJson() const {
    nlohmann::json results = nlohmann::json::array();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Replayed& row = rows_[i];
      results.push_back(
          {{"policy", row.policy},
           {"capacity", row.capacity->text},
           {"capacity_blocks", row.capacity->block_count},
           {"hit_blocks", row.hit_count},
           {"hit_percent", Percent(row.hit_count, trace_.touch_count())},
           {"optimum_hit_blocks", optimum_hits_[i / policies_.size()]},
           {"evicted_blocks", row.eviction_count},
           {"full_after_request", row.warm_request},
           {"hit_percent_once_full", Percent(row.warm_hit_count, row.warm_touch_count)},
           {"prefill_tokens_saved", row.hit_count * trace_.block_tokens()}});
    }
    const LruCurve curve(trace_);
    nlohmann::json points = nlohmann::json::array();
    for (uint32_t i = 1; i <= kCurvePoints; ++i) {
      const auto capacity_blocks = static_cast<uint32_t>(
          std::max<uint64_t>(uint64_t{trace_.unique_count()} * i / kCurvePoints, 1));
      points.push_back(
          {{"capacity_blocks", capacity_blocks},
           {"hit_percent", Percent(curve.HitsAt(capacity_blocks), trace_.touch_count())}});
    }
    return {{"trace", trace_path_},
            {"requests", trace_.request_count()},
            {"block_touches", trace_.touch_count()},
            {"unique_blocks", trace_.unique_count()},
            {"block_tokens", trace_.block_tokens()},
            {"order", is_free_ ? "free" : "leaf_first"},
            {"results", std::move(results)},
            {"lru_curve", std::move(points)}};
  }

  bool WriteCsv() const {
    std::ofstream file(csv_path_);
    file << "policy,capacity_blocks,hit_blocks,hit_percent,optimum_hit_percent,evicted_blocks\n";
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Replayed& row = rows_[i];
      file << fmt::format("{},{},{},{:.4f},{:.4f},{}\n", row.policy, row.capacity->block_count,
                          row.hit_count, Percent(row.hit_count, trace_.touch_count()),
                          Percent(optimum_hits_[i / policies_.size()], trace_.touch_count()),
                          row.eviction_count);
    }
    file.flush();
    if (file) return true;
    return Fail(fmt::format("cannot write --csv {}: {}", csv_path_, std::strerror(errno))) ==
           kExitOk;
  }

  std::string trace_path_;
  std::string csv_path_;
  std::vector<std::string> policies_;
  std::vector<std::string> capacity_texts_ = {"0.5%", "1%", "2%", "5%", "10%", "20%", "50%"};
  std::vector<Capacity> capacities_;
  DenseTrace trace_;
  std::vector<Replayed> rows_;          // by capacity, then policy
  std::vector<uint64_t> optimum_hits_;  // by capacity
  uint64_t request_count_max_ = uint64_t{1} << 32;
  uint32_t block_tokens_ = 0;
  bool is_free_ = false;
  bool has_no_hints_ = false;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeReplayVerb() { return std::make_unique<ReplayVerb>(); }

}  // namespace terrace::tools
