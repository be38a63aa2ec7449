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
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "daemon/policy/admission.h"
#include "tools/replay/dense_trace.h"
#include "tools/replay/eviction/compared_policies.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/optimum.h"
#include "tools/replay/replay_cache.h"
#include "tools/terrace/cli/line_chart.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/trace/trace_reader.h"
#include "tools/terrace/verbs/replay_tiers.h"

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
  uint64_t passed_by_count = 0;
  uint64_t warm_request = 0;  // the first request after which the tier was full; 0: it never was
  uint64_t warm_hit_count = 0;
  uint64_t warm_touch_count = 0;  // after it
  double cpu_s = 0;
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

double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
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
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("replay", "Compare eviction policies on a trace");
    verb.AddOption("TRACE", trace_path_, "JSON lines, plain or gzip'd, with hash_ids").Required();
    verb.AddOption("--policy", policies_, "Policies to replay (default: all)").SplitAt(',');
    verb.AddOption("--capacity", capacity_texts_,
                   "Blocks of the tier, or a share of the trace's blocks such as 5%")
        .SplitAt(',');
    verb.AddOption("--requests", request_count_max_, "Read no more requests than this").Positive();
    verb.AddOption("--block-tokens", block_tokens_,
                   "Tokens a block of the trace has (default: 256 with sessions, else 512)");
    verb.AddFlag("--free", is_free_, "Evict any block, not leaves only: as papers measure");
    verb.AddOption("--step-blocks", step_blocks_,
                   "Blocks that an engine stores at a time, which pass by where their policy lets "
                   "them (default: 128)")
        .Positive();
    verb.AddFlag("--no-hints", has_no_hints_, "Ignore why requests ended");
    verb.AddOption("--csv", csv_path_, "Also write the table to this file").Type("FILE");
    verb.AddOption("--html", html_path_, "Also write a report with plots to this file")
        .Type("FILE");
    verb.AddOption("--below", below_texts_,
                   "Blocks of a second, slower tier, as --capacity: replay two tiers")
        .SplitAt(',');
    verb.AddOption("--below-policy", below_policy_, "Its policy (default: as above it)");
    verb.AddOption("--admission", admissions_,
                   "What is written to it: none, all, hit, predicted, random, second_use")
        .SplitAt(',');
    verb.AddOption("--writes-per-day", writes_per_day_,
                   "Blocks that may be written to it in 24 hours of the trace (default: any)")
        .Positive();
    verb.AddOption("--shared", shared_texts_,
                   "Blocks of a third tier that hosts share, as --capacity")
        .SplitAt(',');
    verb.AddOption("--shared-admission", shared_admission_, "What is written to it: all or hit")
        .OneOf({"all", "hit"});
    verb.AddOption(
            "--hosts", host_count_,
            "Hosts with such tiers each; a request goes to one by its session, else in turns")
        .Between(1, 1024);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (policies_.empty()) {
      const auto names = ComparedPolicyNames();
      policies_.assign(names.begin(), names.end());
    }
    std::vector<std::string> named = policies_;
    if (!below_policy_.empty()) named.push_back(below_policy_);
    for (const std::string& name : named) {
      if (MakeComparedPolicy(name, 1) != nullptr) continue;
      return Usage(fmt::format("there is no policy '{}'; there are {}", name,
                               fmt::join(ComparedPolicyNames(), ", ")));
    }
    const AdmissionOptions probe{.capacity_blocks = 1, .write_bytes_per_day = 1};
    for (const std::string& name : admissions_) {
      if (name == "none" || MakeAdmissionPolicy(name, probe) != nullptr) continue;
      return Usage(fmt::format("there is no admission '{}'; there are none, {}", name,
                               fmt::join(AdmissionPolicyNames(), ", ")));
    }
    if (!ReadInput()) return kExitFailed;
    if (!ParseCapacities("--capacity", capacity_texts_, &capacities_)) return kExitUsage;
    if (!ParseCapacities("--below", below_texts_, &belows_)) return kExitUsage;
    if (!ParseCapacities("--shared", shared_texts_, &shareds_)) return kExitUsage;
    if (belows_.empty() && (!shareds_.empty() || host_count_ > 1)) {
      return Usage(
          "--shared and --hosts are of tiers: say --below BLOCKS, and --admission none for "
          "hosts without one");
    }
    if (shareds_.empty()) shareds_.emplace_back();
    ReplayAll();
    if (!csv_path_.empty() && !WriteFile("--csv", csv_path_, ToCsv())) return kExitFailed;
    if (!html_path_.empty() && !WriteFile("--html", html_path_, ToHtml())) return kExitFailed;
    if (is_json_) {
      PrintJson(ToJson());
    } else {
      PrintText(Tables());
    }
    return kExitOk;
  }

 private:
  static ExitCode Usage(std::string_view message) {
    Fail(fmt::format("replay: {}. See `terrace replay --help`", message));
    return kExitUsage;
  }

  bool ParseCapacities(std::string_view option, const std::vector<std::string>& texts,
                       std::vector<Capacity>* capacities) const {
    for (const std::string& text : texts) {
      capacities->push_back({text, ParseCapacity(text, trace_.unique_count())});
      if (capacities->back().block_count > 0) continue;
      return Usage(fmt::format("{} {} is no number of blocks above 0, nor a share like 5%", option,
                               text)) == kExitOk;
    }
    return true;
  }

  bool ReadInput() {
    Trace recorded;
    std::string why;
    const TraceOptions options{.request_count_max = request_count_max_,
                               .block_tokens = block_tokens_};
    if (!ReadTrace(trace_path_, options, &recorded, &why)) return Fail(why) == kExitOk;
    if (recorded.cut_line != 0) Fail(CutLineText(trace_path_, recorded));
    if (has_no_hints_) {
      for (TraceRequest& request : recorded.requests) {
        request.end_reason = protocol::EndReason::kUnknown;
      }
    }
    if (!trace_.Build(recorded, &why)) return Fail(trace_path_ + ": " + why) == kExitOk;
    if (trace_.asked_count() > 0) return true;
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
        for (const Capacity& below : belows_) {
          for (const Capacity& shared : shareds_) {
            AddTiers(policy, {capacity, below, shared}, progress);
          }
        }
      }
    }
  }

  struct TierCapacities {
    const Capacity& dram;
    const Capacity& below;
    const Capacity& shared;  // of no blocks: there is none
  };
  void AddTiers(const std::string& policy, const TierCapacities& capacities,
                const Progress& progress) {
    const auto& [dram, below, shared] = capacities;
    for (const std::string& admission : admissions_) {
      const TierCase what{.policy = policy,
                          .below_policy = below_policy_.empty() ? policy : below_policy_,
                          .admission = admission,
                          .dram_text = dram.text,
                          .below_text = below.text,
                          .dram_blocks = dram.block_count,
                          .below_blocks = below.block_count,
                          .writes_per_day = writes_per_day_,
                          .shared_text = shared.text,
                          .shared_blocks = shared.block_count,
                          .shared_admission = shared_admission_ == "hit"
                                                  ? SharedCache::Admission::kHit
                                                  : SharedCache::Admission::kAll,
                          .host_count = host_count_};
      const std::string title = fmt::format("{}, {} over {}", admission, dram.text, below.text);
      tiers_.push_back(ReplayTiers(trace_, what, [&](uint64_t request_count) {
        progress.Show(title, request_count, trace_.request_count());
      }));
    }
  }

  Replayed ReplayOne(const std::string& name, const Capacity& capacity,
                     const Progress& progress) const {
    Replayed row{.policy = name, .capacity = &capacity};
    const auto policy = MakeComparedPolicy(name, capacity.block_count);
    const EvictionOrder order = is_free_ ? EvictionOrder::kFree : EvictionOrder::kLeafFirst;
    ReplayCache cache(
        trace_,
        {.capacity_blocks = capacity.block_count, .order = order, .step_blocks = step_blocks_},
        *policy);
    const double start_s = ThreadCpuSeconds();
    for (size_t r = 0; r < trace_.request_count(); ++r) {
      if ((r & kProgressStepMask) == 0) {
        progress.Show(name + " at " + capacity.text, r, trace_.request_count());
      }
      const uint32_t hit_count = cache.Serve(r);
      row.hit_count += hit_count;
      if (row.warm_request > 0) {
        row.warm_hit_count += hit_count;
        row.warm_touch_count += trace_.request(r).is_asked() ? trace_.path(r).size() : 0;
      } else if (cache.resident_count() == capacity.block_count) {
        row.warm_request = r + 1;
      }
    }
    row.cpu_s = ThreadCpuSeconds() - start_s;
    row.eviction_count = cache.eviction_count();
    row.passed_by_count = cache.passed_by_count();
    return row;
  }

  const Replayed& RowOf(size_t policy_index, size_t capacity_index) const {
    return rows_[capacity_index * policies_.size() + policy_index];
  }

  std::string Tables() const {
    std::string text = fmt::format(
        "{} requests, {} block touches, {} blocks of {} tokens; {} eviction\n\nblock hit rate, % "
        "(prefix hits; capacity as given)\n",
        FormatCount(trace_.request_count()), FormatCount(trace_.asked_count()),
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
            fmt::format("{:.2f}", Percent(RowOf(p, c).hit_count, trace_.asked_count())));
      }
      cells.push_back(
          FormatCount(RowOf(p, capacities_.size() - 1).hit_count * trace_.block_tokens()));
      table.AddRow(std::move(cells));
    }
    std::vector<std::string> cells = {"optimum"};
    for (const uint64_t hits : optimum_hits_) {
      cells.push_back(fmt::format("{:.2f}", Percent(hits, trace_.asked_count())));
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
    text += "\n";
    if (!tiers_.empty()) text += "\n" + RenderTiers(trace_, tiers_);
    return text;
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
           {"hit_percent", Percent(row.hit_count, trace_.asked_count())},
           {"optimum_hit_blocks", optimum_hits_[i / policies_.size()]},
           {"evicted_blocks", row.eviction_count},
           {"passed_by_blocks", row.passed_by_count},
           {"cpu_seconds", row.cpu_s},
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
           {"hit_percent", Percent(curve.HitsAt(capacity_blocks), trace_.asked_count())}});
    }
    return {{"trace", trace_path_},
            {"requests", trace_.request_count()},
            {"block_touches", trace_.asked_count()},
            {"unique_blocks", trace_.unique_count()},
            {"block_tokens", trace_.block_tokens()},
            {"order", is_free_ ? "free" : "leaf_first"},
            {"step_blocks", step_blocks_},
            {"results", std::move(results)},
            {"lru_curve", std::move(points)},
            {"tiers", TiersToJson(trace_, tiers_)}};
  }

  std::string ToCsv() const {
    std::string csv =
        "policy,capacity_blocks,hit_blocks,hit_percent,optimum_hit_percent,evicted_blocks\n";
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Replayed& row = rows_[i];
      csv += fmt::format("{},{},{},{:.4f},{:.4f},{}\n", row.policy, row.capacity->block_count,
                         row.hit_count, Percent(row.hit_count, trace_.asked_count()),
                         Percent(optimum_hits_[i / policies_.size()], trace_.asked_count()),
                         row.eviction_count);
    }
    return csv;
  }

  // By rising capacity, whatever order they were asked for in.
  LineChart Chart() const {
    LineChart chart{.x_title = "capacity, blocks", .y_title = "block hit rate, %"};
    const auto add = [&](const std::string& name, const auto& hits_at) {
      LineChart::Series line{.name = name};
      for (size_t c = 0; c < capacities_.size(); ++c) {
        line.points.emplace_back(capacities_[c].block_count,
                                 Percent(hits_at(c), trace_.asked_count()));
      }
      std::sort(line.points.begin(), line.points.end());
      chart.series.push_back(std::move(line));
    };
    for (size_t p = 0; p < policies_.size(); ++p) {
      add(policies_[p], [&](size_t c) { return RowOf(p, c).hit_count; });
    }
    add("optimum", [&](size_t c) { return optimum_hits_[c]; });
    return chart;
  }

  // All LRU capacities, from one pass.
  LineChart CurveChart() const {
    LineChart chart{.x_title = "capacity, blocks", .y_title = "block hit rate of LRU, %"};
    const LruCurve curve(trace_);
    LineChart::Series line{.name = "lru"};
    const double unique_count = trace_.unique_count();
    for (uint32_t i = 0; i <= kCurvePoints; ++i) {
      const auto capacity_blocks = static_cast<uint32_t>(
          std::ceil(std::pow(unique_count, static_cast<double>(i) / kCurvePoints)));
      if (!line.points.empty() && line.points.back().first >= capacity_blocks) continue;
      line.points.emplace_back(capacity_blocks,
                               Percent(curve.HitsAt(capacity_blocks), trace_.asked_count()));
    }
    chart.series.push_back(std::move(line));
    return chart;
  }

  std::string ToHtml() const {
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<title>terrace replay: {0}</title><style>body{{font-family:sans-serif;max-width:60rem;"
        "margin:2rem auto}}pre{{overflow:auto}}</style></head><body>\n<h1>{0}</h1>\n"
        "<h2>Hit rate by policy</h2>\n{1}\n<h2>LRU at every capacity</h2>\n{2}\n"
        "<h2>Figures</h2>\n<pre>{3}</pre>\n</body></html>\n",
        EscapeHtml(trace_path_), Chart().ToSvg(), CurveChart().ToSvg(), EscapeHtml(Tables()));
  }

  static bool WriteFile(std::string_view option, const std::string& path,
                        const std::string& content) {
    std::ofstream file(path);
    file << content;
    file.flush();
    if (file) return true;
    return Fail(fmt::format("cannot write {} {}: {}", option, path, std::strerror(errno))) ==
           kExitOk;
  }

  std::string trace_path_;
  std::string csv_path_;
  std::string html_path_;
  std::vector<std::string> policies_;
  std::vector<std::string> capacity_texts_ = {"0.5%", "1%", "2%", "5%", "10%", "20%", "50%"};
  std::vector<Capacity> capacities_;
  std::vector<std::string> below_texts_;
  std::vector<Capacity> belows_;
  std::vector<std::string> shared_texts_;
  std::vector<Capacity> shareds_;
  std::string shared_admission_ = "all";
  uint32_t host_count_ = 1;
  std::string below_policy_;
  std::vector<std::string> admissions_ = {"none", "all", "predicted"};
  DenseTrace trace_;
  std::vector<Replayed> rows_;          // by capacity, then policy
  std::vector<uint64_t> optimum_hits_;  // by capacity
  std::vector<TierResult> tiers_;
  uint64_t writes_per_day_ = UINT64_MAX;
  uint64_t request_count_max_ = uint64_t{1} << 32;
  uint32_t block_tokens_ = 0;
  uint32_t step_blocks_ = 128;
  bool is_free_ = false;
  bool has_no_hints_ = false;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeReplayVerb() { return std::make_unique<ReplayVerb>(); }

}  // namespace terrace::tools
