// `terrace bench rtt`.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/terrace/bench/bench_run.h"
#include "tools/terrace/bench/cpu_pin.h"
#include "tools/terrace/bench/rtt_worker.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kPhaseMsMax = 600'000;
// On one CPU two more switches of context are part of the way; the bar allows them this.
constexpr double kSameCpuAllowanceUs = 10;

struct Mode {
  std::string name;
  int client_cpu = 0;
  int daemon_cpu = 0;
  std::vector<double> echo_p50_us;
  std::vector<double> acquire_p50_us;
  std::vector<double> ratios;
  LatencyHistogram acquires;
  uint64_t request_bytes = 0;
  uint64_t reply_bytes = 0;

  bool is_same_cpu() const { return client_cpu == daemon_cpu; }
};

class BenchRttVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        "rtt", "One Acquire of resident blocks against a bare echo of as many bytes");
    verb.AddFlag("--same-cpu", has_same_cpu_, "Only with client and daemon on one CPU");
    verb.AddFlag("--separate-cpus", has_separate_cpus_, "Only with client and daemon on two CPUs");
    verb.AddOption("--blocks", shape_.prompt_blocks, "Blocks of the Acquire")
        .Type("N")
        .ShowDefault()
        .Between(1u, 4096u);
    verb.AddOption("--rounds", round_count_, "Pairs of echo and measurement")
        .Type("N")
        .ShowDefault()
        .Between(1u, 1000u);
    verb.AddOption("--ops", op_count_, "Exchanges of a round")
        .Type("N")
        .ShowDefault()
        .Between(uint64_t{1}, uint64_t{1} << 30);
    verb.AddOption("--daemon-pid", daemon_pid_,
                   "The daemon of --socket, to be pinned (with --spawn it is known)")
        .Type("PID")
        .Between(1, 1 << 22);
    verb.AddOption("--pin", arguments_.cpu_list,
                   "Two CPUs: the client's, the daemon's (default: the first two allowed)")
        .Type("A,B");
    verb.AddOption("--assert-ratio", ratio_max_,
                   "Fail if a median Acquire takes more than X echoes (on one CPU: and 10 us)")
        .Type("X")
        .Between(0.0, 1000.0);
    DeclareBench(verb, &arguments_);
    return verb;
  }

  ExitCode Run() override {
    if (!ResolveBench(&arguments_)) return kExitUsage;
    if (!arguments_.has_own_daemon && daemon_pid_ == 0) {
      Fail(
          "bench rtt pins the daemon: say --spawn to start one, or --daemon-pid PID of the one at "
          "--socket");
      return kExitUsage;
    }
    std::vector<Mode> modes;
    if (ExitCode outcome = PlanModes(&modes); outcome != kExitOk) return outcome;
    std::optional<BenchDaemon> daemon = FindDaemon(arguments_, shape_, shape_.prompt_bytes());
    if (!daemon) return kExitFailed;
    if (daemon->own != nullptr) daemon_pid_ = daemon->own->pid();
    for (Mode& mode : modes) {
      if (!Measure(daemon->connection, &mode)) return kExitFailed;
    }
    Report(modes);
    return Evaluate(modes);
  }

 private:
  ExitCode PlanModes(std::vector<Mode>* modes) {
    std::vector<int> cpus = arguments_.cpus.empty() ? AllowedCpus() : arguments_.cpus;
    const bool wants_both = has_same_cpu_ == has_separate_cpus_;
    if (has_same_cpu_ || wants_both) {
      modes->push_back({.name = "same cpu", .client_cpu = cpus[0], .daemon_cpu = cpus[0]});
    }
    if (has_separate_cpus_ || wants_both) {
      if (cpus.size() < 2) {
        Fail("--separate-cpus needs two CPUs, this process may use one. Use --same-cpu");
        return kExitUsage;
      }
      modes->push_back({.name = "separate cpus", .client_cpu = cpus[0], .daemon_cpu = cpus[1]});
    }
    return kExitOk;
  }

  bool Measure(const BenchConnection& connection, Mode* mode) {
    std::string why;
    if (!PinProcess(daemon_pid_, mode->daemon_cpu, &why)) {
      Fail(why);
      return false;
    }
    BenchArguments one_client = arguments_;
    one_client.cpus = {mode->client_cpu};
    const RttWorkload workload{
        .shape = shape_, .connection = connection, .echo_cpu = mode->daemon_cpu};
    auto workers = StartWorkers(one_client, kPhaseMsMax, [&](uint32_t, std::string* reason) {
      return MakeRttWorker(workload, reason);
    });
    if (workers == nullptr || !RunPhase(*workers, {.phase = Phase::kPrepare})) return false;
    mode->request_bytes = workers->report(0).request_bytes;
    mode->reply_bytes = workers->report(0).reply_bytes;
    // One round of each, not counted.
    for (Phase phase : {Phase::kFloor, Phase::kTerrace}) {
      if (!RunPhase(*workers, {.phase = phase, .op_count_max = std::min(op_count_, kWarmOps)})) {
        return false;
      }
    }
    for (uint32_t round = 0; round < round_count_; ++round) {
      if (!RunPhase(*workers, {.phase = Phase::kFloor, .op_count_max = op_count_})) return false;
      mode->echo_p50_us.push_back(workers->report(0).latencies.Percentile(0.5) / 1e3);
      if (!RunPhase(*workers, {.phase = Phase::kTerrace, .op_count_max = op_count_})) return false;
      mode->acquire_p50_us.push_back(workers->report(0).latencies.Percentile(0.5) / 1e3);
      mode->ratios.push_back(mode->acquire_p50_us.back() / mode->echo_p50_us.back());
      mode->acquires.Add(workers->report(0).latencies);
    }
    return RunPhase(*workers, {.phase = Phase::kCheck});
  }

  void Report(const std::vector<Mode>& modes) const {
    using enum TextTable::Align;
    TextTable table({{"MODE", kLeft},
                     {"ECHO p50 us", kRight},
                     {"ACQUIRE p50 us", kRight},
                     {"RATIO", kRight},
                     {"p99 us", kRight}});
    nlohmann::json entries = nlohmann::json::array();
    for (const Mode& mode : modes) {
      const Summary echo = Summarize(mode.echo_p50_us);
      const Summary acquire = Summarize(mode.acquire_p50_us);
      const Summary ratio = Summarize(mode.ratios);
      const double p99_us = mode.acquires.Percentile(0.99) / 1e3;
      table.AddRow({mode.name, FormatSummary(echo, 1), FormatSummary(acquire, 1),
                    FormatSummary(ratio, 2), fmt::format("{:.1f}", p99_us)});
      entries.push_back({{"mode", mode.name},
                         {"client_cpu", mode.client_cpu},
                         {"daemon_cpu", mode.daemon_cpu},
                         {"request_bytes", mode.request_bytes},
                         {"reply_bytes", mode.reply_bytes},
                         {"echo_p50_us", ToJson(echo)},
                         {"acquire_p50_us", ToJson(acquire)},
                         {"acquire_p99_us", p99_us},
                         {"ratio", ToJson(ratio)}});
    }
    if (arguments_.is_json) {
      return PrintJson({{"bench", "rtt"},
                        {"block_count", shape_.prompt_blocks},
                        {"round_count", round_count_},
                        {"rows", entries}});
    }
    PrintText(
        fmt::format("bench rtt: Acquire of {} resident blocks, {} bytes out and {} back, median "
                    "(range) of {} rounds of {}\n",
                    shape_.prompt_blocks, modes[0].request_bytes, modes[0].reply_bytes,
                    round_count_, op_count_));
    PrintText(table.Render());
  }

  ExitCode Evaluate(const std::vector<Mode>& modes) const {
    if (ratio_max_ <= 0) return kExitOk;
    for (const Mode& mode : modes) {
      const double allowed_us = Summarize(mode.echo_p50_us).median * ratio_max_ +
                                (mode.is_same_cpu() ? kSameCpuAllowanceUs : 0);
      const double acquire_us = Summarize(mode.acquire_p50_us).median;
      if (acquire_us > allowed_us) {
        return Fail(
            fmt::format("bench rtt, {}: an Acquire takes {:.1f} us, --assert-ratio {} allows "
                        "{:.1f} us",
                        mode.name, acquire_us, ratio_max_, allowed_us));
      }
    }
    return kExitOk;
  }

  static constexpr uint64_t kWarmOps = 500;

  BenchArguments arguments_;
  BenchShape shape_{.block_bytes = 4096, .part_count = 1, .prompt_blocks = 128, .prompt_count = 1};
  bool has_same_cpu_ = false;
  bool has_separate_cpus_ = false;
  uint32_t round_count_ = 5;
  uint64_t op_count_ = 2000;
  int daemon_pid_ = 0;
  double ratio_max_ = 0;
};

}  // namespace

std::unique_ptr<Verb> MakeBenchRttVerb() { return std::make_unique<BenchRttVerb>(); }

}  // namespace terrace::tools
