// `terrace bench mixed` and `terrace bench replay`.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "tools/terrace/bench/bench_run.h"
#include "tools/terrace/bench/prompt_worker.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/trace/trace_reader.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kPhaseMsMax =
    24ull * 3600 * 1000;  // a replay may be long; it ends with its trace
constexpr uint64_t kReplayDramBytesDefault = 1 * kGiB;

// What both verbs print.
struct Outcome {
  PhaseReport total;
  uint64_t evicted_count = 0;
  uint64_t block_bytes = 0;

  double seconds() const { return static_cast<double>(total.busy_ns) / 1e9; }
  double PerSecond(uint64_t count) const {
    return total.busy_ns == 0 ? 0 : static_cast<double>(count) / seconds();
  }
};

void ReportText(const Outcome& outcome, const BenchArguments& arguments) {
  const PhaseReport& total = outcome.total;
  std::string text;
  text += fmt::format("requests  {} in {:.1f} s: {:.0f} /s\n", FormatCount(total.op_count),
                      outcome.seconds(), outcome.PerSecond(total.op_count));
  text += fmt::format("blocks    {} asked: {:.0f} /s\n", FormatCount(total.blocks_asked),
                      outcome.PerSecond(total.blocks_asked));
  text +=
      fmt::format("hit rate  {} ({} blocks)\n", FormatShare(total.blocks_hit, total.blocks_asked),
                  FormatCount(total.blocks_hit));
  text +=
      fmt::format("stored    {} blocks, {} refused, {} evicted\n", FormatCount(total.blocks_stored),
                  FormatCount(total.blocks_refused), FormatCount(outcome.evicted_count));
  text += fmt::format("moved     {}: {:.2f} GB/s in and out\n", FormatBytes(total.byte_count),
                      outcome.PerSecond(total.byte_count) / 1e9);
  text +=
      fmt::format("acquire   p50 {:.1f} us, p99 {:.1f} us\n", total.latencies.Percentile(0.5) / 1e3,
                  total.latencies.Percentile(0.99) / 1e3);
  if (arguments.has_verify) {
    text += fmt::format("verified  {} blocks, every byte\n", FormatCount(total.blocks_verified));
  }
  PrintText(text);
}

nlohmann::json OutcomeToJson(const Outcome& outcome, const BenchArguments& arguments) {
  const PhaseReport& total = outcome.total;
  return {{"client_count", arguments.client_count},
          {"block_bytes", outcome.block_bytes},
          {"is_verified", arguments.has_verify},
          {"seconds", outcome.seconds()},
          {"request_count", total.op_count},
          {"requests_per_s", outcome.PerSecond(total.op_count)},
          {"blocks_per_s", outcome.PerSecond(total.blocks_asked)},
          {"blocks_asked", total.blocks_asked},
          {"blocks_hit", total.blocks_hit},
          {"blocks_stored", total.blocks_stored},
          {"blocks_refused", total.blocks_refused},
          {"blocks_evicted", outcome.evicted_count},
          {"blocks_verified", total.blocks_verified},
          {"bytes_moved", total.byte_count},
          {"acquire_p50_us", total.latencies.Percentile(0.5) / 1e3},
          {"acquire_p99_us", total.latencies.Percentile(0.99) / 1e3}};
}

// One phase of all clients, with what the daemon evicted meanwhile.
bool MeasurePhase(const BenchArguments& arguments, const BenchConnection& connection,
                  const BenchShape& shape, const PhaseCommand& command,
                  const WorkerPool::Factory& factory, Outcome* outcome) {
  std::optional<uint64_t> before = CountEvictions(connection, shape);
  if (!before) return false;
  auto workers = StartWorkers(arguments, kPhaseMsMax, factory);
  if (workers == nullptr || !RunPhase(*workers, {.phase = Phase::kPrepare}) ||
      !RunPhase(*workers, command)) {
    return false;
  }
  std::optional<uint64_t> after = CountEvictions(connection, shape);
  if (!after) return false;
  *outcome = {.total = workers->Total(),
              .evicted_count = *after - std::min(*before, *after),
              .block_bytes = shape.block_bytes};
  return true;
}

class BenchMixedVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        "mixed", "Random prompts from several processes: load what is there, store what is not");
    verb.AddOption("--block-bytes", block_bytes_text_, "Block size").Type("SIZE").ShowDefault();
    verb.AddOption("--parts", shape_.part_count, "Parts of a block")
        .Type("N")
        .ShowDefault()
        .Between(1u, kPartsPerSpaceMax);
    verb.AddOption("--prompt-blocks", shape_.prompt_blocks, "Blocks of one prompt")
        .Type("N")
        .ShowDefault()
        .Between(1u, protocol::kKeysPerRequestMax);
    verb.AddOption("--prompts", shape_.prompt_count, "Prompts in the pool, shared by all clients")
        .Type("N")
        .ShowDefault()
        .Between(1u, 1u << 20);
    const Argument seconds = verb.AddOption("--seconds", seconds_, "How long")
                                 .Type("S")
                                 .ShowDefault()
                                 .Between(0.01, 86400.0);
    verb.AddOption("--ops", op_count_, "Requests of each client, instead of --seconds")
        .Type("N")
        .Excludes(seconds)
        .Between(uint64_t{1}, uint64_t{1} << 40);
    DeclareClients(verb, &arguments_);
    DeclareBench(verb, &arguments_);
    return verb;
  }

  ExitCode Run() override {
    if (!ResolveBench(&arguments_) ||
        !ParseBlockBytes(block_bytes_text_, shape_.part_count, &shape_.block_bytes)) {
      return kExitUsage;
    }
    auto daemon = FindDaemon(arguments_, shape_, shape_.prompt_bytes() * shape_.prompt_count);
    if (!daemon) return kExitFailed;
    PhaseCommand command{
        .phase = Phase::kTerrace, .busy_ns_max = UINT64_MAX, .op_count_max = UINT64_MAX};
    if (op_count_ > 0) {
      command.op_count_max = op_count_;
    } else {
      command.busy_ns_max = static_cast<uint64_t>(seconds_ * 1e9);
    }
    const uint64_t salt = uint64_t{std::random_device{}()} << 32;
    const PromptWorkload workload{
        .shape = shape_,
        .connection = daemon->connection,
        .client_count = arguments_.client_count,
        .bytes = arguments_.has_verify ? PromptBytes::kVerified : PromptBytes::kCopied};
    Outcome outcome;
    if (!MeasurePhase(
            arguments_, daemon->connection, shape_, command,
            [&](uint32_t index, std::string* why) {
              return MakeMixedWorker(workload, salt, index, why);
            },
            &outcome)) {
      return kExitFailed;
    }
    if (arguments_.is_json) {
      nlohmann::json document = OutcomeToJson(outcome, arguments_);
      document["bench"] = "mixed";
      PrintJson(document);
    } else {
      ReportText(outcome, arguments_);
    }
    return kExitOk;
  }

 private:
  BenchArguments arguments_;
  BenchShape shape_{.part_count = 1, .prompt_blocks = 16, .prompt_count = 64};
  std::string block_bytes_text_ = "256K";
  double seconds_ = 5;
  uint64_t op_count_ = 0;
};

class BenchReplayVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb =
        parent.AddVerb("replay", "Drive the daemon with the requests of a recorded trace");
    verb.AddOption("--trace", trace_path_, "JSON lines, plain or gzip'd, with hash_ids")
        .Type("FILE")
        .Required();
    verb.AddOption("--requests", request_count_max_, "Replay only the first N requests")
        .Type("N")
        .Between(uint64_t{1}, kTraceIdsMax);
    verb.AddOption("--block-bytes", block_bytes_text_, "Size of the blocks made for the ids")
        .Type("SIZE")
        .ShowDefault();
    verb.AddOption("--block-tokens", block_tokens_,
                   "Tokens a block of the trace has (default: 256 with sessions, else 512)")
        .Type("N")
        .Between(1u, kBlockTokensMax);
    verb.AddOption("--speed", speed_, "Trace time over real time; 0: as fast as possible")
        .Type("X")
        .ShowDefault()
        .Between(0.0, 1e9);
    DeclareClients(verb, &arguments_);
    DeclareBench(verb, &arguments_);
    return verb;
  }

  ExitCode Run() override {
    BenchShape shape{.part_count = 1, .prompt_blocks = 1, .prompt_count = 1};
    if (!ResolveBench(&arguments_) || !ParseBlockBytes(block_bytes_text_, 1, &shape.block_bytes)) {
      return kExitUsage;
    }
    Trace trace;
    std::string reason;
    if (!ReadTrace(trace_path_,
                   {.request_count_max = request_count_max_, .block_tokens = block_tokens_}, &trace,
                   &reason)) {
      return Fail(reason);
    }
    if (trace.cut_line != 0) Fail(CutLineText(trace_path_, trace));
    auto daemon = FindDaemon(arguments_, shape, kReplayDramBytesDefault);
    if (!daemon) return kExitFailed;
    ReplayWorkload workload;
    workload.shape = shape;
    workload.connection = daemon->connection;
    workload.client_count = arguments_.client_count;
    workload.bytes = arguments_.has_verify ? PromptBytes::kVerified : PromptBytes::kUntouched;
    workload.trace = &trace;
    workload.speed = speed_;
    Outcome outcome;
    if (!MeasurePhase(
            arguments_, daemon->connection, shape, {.phase = Phase::kTerrace},
            [&](uint32_t index, std::string* why) {
              return MakeReplayWorker(workload, index, why);
            },
            &outcome)) {
      return kExitFailed;
    }
    Report(outcome, trace);
    return kExitOk;
  }

 private:
  void Report(const Outcome& outcome, const Trace& trace) const {
    if (!arguments_.is_json) {
      PrintText(fmt::format("replay of {}: {} requests, {} blocks of {} tokens as {}\n",
                            trace_path_, FormatCount(trace.requests.size()),
                            FormatCount(trace.ids.size()), trace.block_tokens,
                            FormatBytes(outcome.block_bytes)));
      return ReportText(outcome, arguments_);
    }
    nlohmann::json document = OutcomeToJson(outcome, arguments_);
    document["bench"] = "replay";
    document["trace"] = trace_path_;
    document["block_tokens"] = trace.block_tokens;
    PrintJson(document);
  }

  BenchArguments arguments_;
  std::string trace_path_;
  std::string block_bytes_text_ = "64K";
  uint64_t request_count_max_ = kTraceIdsMax;
  uint32_t block_tokens_ = 0;
  double speed_ = 0;
};

}  // namespace

std::unique_ptr<Verb> MakeBenchMixedVerb() { return std::make_unique<BenchMixedVerb>(); }
std::unique_ptr<Verb> MakeBenchReplayVerb() { return std::make_unique<BenchReplayVerb>(); }

}  // namespace terrace::tools
