// `terrace bench store` and `terrace bench load`.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "terrace/units.h"
#include "tools/terrace/bench/bench_run.h"
#include "tools/terrace/bench/copy_worker.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kPhasePatienceMs = 120'000;
constexpr uint64_t kWorkingBytesDefault = 512 * kMiB;

struct Row {
  BenchShape shape;
  std::vector<double> floor_bytes_per_second;
  std::vector<double> bytes_per_second;
  std::vector<double> ratios;  // of each round's pair
  // The same of the median requests: what other work on the machine does not disturb.
  std::vector<double> p50_ratios;
  PhaseReport total;  // of the measured phases
};

class BenchCopyVerb : public Verb {
 public:
  explicit BenchCopyVerb(CopyDirection direction) : direction_(direction) {}

  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        name(), direction_ == CopyDirection::kStore
                    ? "Reserve + write + commit against a plain memcpy into like memory"
                    : "Acquire + copy + release against a plain memcpy out of like memory");
    verb.AddOption("--block-bytes", block_bytes_texts_, "Block sizes, one row each")
        .Type("SIZE,...")
        .SplitAt(',')
        .ShowDefault();
    verb.AddOption("--parts", shape_.part_count, "Parts of a block, copied one by one")
        .Type("N")
        .ShowDefault()
        .Between(1u, kPartsPerSpaceMax);
    verb.AddOption("--prompt-blocks", shape_.prompt_blocks, "Blocks of one request")
        .Type("N")
        .ShowDefault()
        .Between(1u, protocol::kKeysPerRequestMax);
    verb.AddOption("--prompts", shape_.prompt_count,
                   "Prompts in memory at once, over all clients (default: as many as fill 512 "
                   "MiB, more than caches hold)")
        .Type("N")
        .Between(1u, 1u << 20);
    verb.AddOption("--rounds", round_count_, "Pairs of floor and measurement")
        .Type("N")
        .ShowDefault()
        .Between(1u, 1000u);
    const Argument seconds =
        verb.AddOption("--seconds", seconds_, "Measured time of one row, all rounds")
            .Type("S")
            .ShowDefault()
            .Between(0.01, 3600.0);
    verb.AddOption("--ops", op_count_, "Requests of a client and round, instead of --seconds")
        .Type("N")
        .Excludes(seconds)
        .Between(uint64_t{1}, uint64_t{1} << 40);
    verb.AddOption("--assert-ratio", ratio_min_,
                   "Fail if the ratio of median requests is below this in any row")
        .Type("X")
        .Between(0.0, 1000.0);
    DeclareClients(verb, &arguments_);
    DeclareBench(verb, &arguments_);
    return verb;
  }

  ExitCode Run() override {
    if (!ResolveBench(&arguments_)) return kExitUsage;
    std::vector<uint64_t> sizes(block_bytes_texts_.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!ParseBlockBytes(block_bytes_texts_[i], shape_.part_count, &sizes[i])) return kExitUsage;
    }
    std::vector<Row> rows;
    for (uint64_t block_bytes : sizes) {
      Row row{.shape = shape_};
      row.shape.block_bytes = block_bytes;
      if (shape_.prompt_count == 0) {
        row.shape.prompt_count = static_cast<uint32_t>(std::max<uint64_t>(
            arguments_.client_count, kWorkingBytesDefault / row.shape.prompt_bytes()));
      }
      if (!Measure(&row)) return kExitFailed;
      rows.push_back(std::move(row));
    }
    Report(rows);
    return Evaluate(rows);
  }

 private:
  std::string name() const { return direction_ == CopyDirection::kStore ? "store" : "load"; }

  bool Measure(Row* row) {
    const uint64_t working_bytes = row->shape.prompt_bytes() * row->shape.prompt_count;
    std::optional<BenchDaemon> daemon = FindDaemon(arguments_, row->shape, working_bytes);
    if (!daemon) return false;
    std::string why;
    std::unique_ptr<FloorMemory> floor = FloorMemory::Create(working_bytes, &why);
    if (floor == nullptr) {
      Fail(why);
      return false;
    }
    const CopyWorkload workload{
        .direction = direction_,
        .shape = row->shape,
        .connection = daemon->connection,
        .client_count = arguments_.client_count,
        .salt = uint64_t{std::random_device{}()} << 32,
        .verify = arguments_.has_verify ? CopyWorkload::Verify::kYes : CopyWorkload::Verify::kNo,
        .floor = floor.get()};
    const PhaseCommand measured = MeasuredPhase();
    const uint64_t patience_ms =
        kPhasePatienceMs + (op_count_ > 0 ? 0 : measured.busy_ns_max / 1'000'000 * 20);
    auto workers = StartWorkers(arguments_, patience_ms, [&](uint32_t index, std::string* reason) {
      return MakeCopyWorker(workload, index, reason);
    });
    return workers != nullptr && MeasureRounds(*workers, measured, row);
  }

  PhaseCommand MeasuredPhase() const {
    PhaseCommand command{.busy_ns_max = UINT64_MAX, .op_count_max = UINT64_MAX};
    if (op_count_ > 0) {
      command.op_count_max = op_count_;
    } else {
      command.busy_ns_max = static_cast<uint64_t>(seconds_ * 1e9 / (2.0 * round_count_));
    }
    return command;
  }

  bool MeasureRounds(WorkerPool& workers, PhaseCommand command, Row* row) const {
    if (!RunPhase(workers, {.phase = Phase::kPrepare})) return false;
    // One pass of each, not counted: page tables and caches of every process are warm then.
    PhaseCommand warm{.busy_ns_max = UINT64_MAX, .op_count_max = row->shape.prompt_count};
    warm.op_count_max = std::min(warm.op_count_max, command.op_count_max);
    for (Phase phase : {Phase::kFloor, Phase::kTerrace}) {
      warm.phase = phase;
      if (!RunPhase(workers, warm)) return false;
    }
    for (uint32_t round = 0; round < round_count_; ++round) {
      double floor = 0;
      double ours = 0;
      double floor_p50_ns = 0;
      double p50_ns = 0;
      // Who goes first changes, so that neither always finds the other's caches.
      const Phase first = round % 2 == 0 ? Phase::kFloor : Phase::kTerrace;
      for (Phase phase : {first, first == Phase::kFloor ? Phase::kTerrace : Phase::kFloor}) {
        command.phase = phase;
        command.round = round;
        if (!RunPhase(workers, command)) return false;
        (phase == Phase::kFloor ? floor : ours) = workers.TotalBytesPerSecond();
        const PhaseReport total = workers.Total();
        (phase == Phase::kFloor ? floor_p50_ns : p50_ns) = total.latencies.Percentile(0.5);
        if (phase == Phase::kTerrace) Add(total, &row->total);
      }
      row->floor_bytes_per_second.push_back(floor);
      row->bytes_per_second.push_back(ours);
      row->ratios.push_back(floor > 0 ? ours / floor : 0);
      row->p50_ratios.push_back(p50_ns > 0 ? floor_p50_ns / p50_ns : 0);
    }
    return RunPhase(workers, {.phase = Phase::kCheck});
  }

  static void Add(const PhaseReport& report, PhaseReport* total) {
    total->op_count += report.op_count;
    total->block_count += report.block_count;
    total->blocks_asked += report.blocks_asked;
    total->blocks_hit += report.blocks_hit;
    total->blocks_stored += report.blocks_stored;
    total->blocks_refused += report.blocks_refused;
    total->blocks_verified += report.blocks_verified;
    total->latencies.Add(report.latencies);
  }

  void Report(const std::vector<Row>& rows) const {
    if (arguments_.is_json) return ReportJson(rows);
    using enum TextTable::Align;
    TextTable table({{"BLOCK", kRight},
                     {"MEMCPY GB/s", kRight},
                     {"TERRACE GB/s", kRight},
                     {"RATIO", kRight},
                     {"OF MEDIANS", kRight},
                     {"REQUEST p50", kRight},
                     {"p99", kRight},
                     {"BLOCKS", kRight},
                     {direction_ == CopyDirection::kLoad ? "MISSED" : "REFUSED", kRight},
                     {"VERIFIED", kRight}});
    for (const Row& row : rows) {
      table.AddRow({FormatBytes(row.shape.block_bytes), Speed(row.floor_bytes_per_second),
                    Speed(row.bytes_per_second), FormatSummary(Summarize(row.ratios), 2),
                    FormatSummary(Summarize(row.p50_ratios), 2), Microseconds(row, 0.5),
                    Microseconds(row, 0.99), FormatCount(row.total.block_count),
                    FormatCount(MissedOrRefused(row)),
                    arguments_.has_verify ? FormatCount(row.total.blocks_verified) : "-"});
    }
    PrintText(fmt::format(
        "bench {}: {} client process{}, prompts of {} blocks in {} part{}, median "
        "(range) of {} rounds\n",
        name(), arguments_.client_count, arguments_.client_count == 1 ? "" : "es",
        shape_.prompt_blocks, shape_.part_count, shape_.part_count == 1 ? "" : "s", round_count_));
    PrintText(table.Render());
  }

  static std::string Speed(std::vector<double> bytes_per_second) {
    for (double& speed : bytes_per_second) speed /= 1e9;
    return FormatSummary(Summarize(bytes_per_second), 2);
  }
  static std::string Microseconds(const Row& row, double share) {
    return fmt::format("{:.1f} us", row.total.latencies.Percentile(share) / 1e3);
  }
  uint64_t MissedOrRefused(const Row& row) const {
    return direction_ == CopyDirection::kLoad ? row.total.blocks_asked - row.total.blocks_hit
                                              : row.total.blocks_refused;
  }

  void ReportJson(const std::vector<Row>& rows) const {
    nlohmann::json entries = nlohmann::json::array();
    for (const Row& row : rows) {
      entries.push_back({{"block_bytes", row.shape.block_bytes},
                         {"part_count", row.shape.part_count},
                         {"prompt_blocks", row.shape.prompt_blocks},
                         {"prompt_count", row.shape.prompt_count},
                         {"floor_bytes_per_s", ToJson(Summarize(row.floor_bytes_per_second))},
                         {"terrace_bytes_per_s", ToJson(Summarize(row.bytes_per_second))},
                         {"ratio", ToJson(Summarize(row.ratios))},
                         {"p50_ratio", ToJson(Summarize(row.p50_ratios))},
                         {"request_p50_us", row.total.latencies.Percentile(0.5) / 1e3},
                         {"request_p99_us", row.total.latencies.Percentile(0.99) / 1e3},
                         {"block_count", row.total.block_count},
                         {"blocks_missed", row.total.blocks_asked - row.total.blocks_hit},
                         {"blocks_refused", row.total.blocks_refused},
                         {"blocks_verified", row.total.blocks_verified}});
    }
    PrintJson({{"bench", name()},
               {"client_count", arguments_.client_count},
               {"round_count", round_count_},
               {"is_verified", arguments_.has_verify},
               {"rows", entries}});
  }

  ExitCode Evaluate(const std::vector<Row>& rows) const {
    for (const Row& row : rows) {
      if (row.total.block_count == 0) {
        return Fail(fmt::format("bench {}: the daemon took no block of {}. See `terrace status`",
                                name(), FormatBytes(row.shape.block_bytes)));
      }
      const double ratio = Summarize(row.p50_ratios).median;
      if (ratio_min_ > 0 && ratio < ratio_min_) {
        return Fail(
            fmt::format("bench {}: blocks of {} reach {:.3f} of memcpy, --assert-ratio is {:.3f}",
                        name(), FormatBytes(row.shape.block_bytes), ratio, ratio_min_));
      }
    }
    return kExitOk;
  }

  CopyDirection direction_;
  BenchArguments arguments_;
  BenchShape shape_{.part_count = 1, .prompt_blocks = 16, .prompt_count = 0};
  std::vector<std::string> block_bytes_texts_ = {"1M"};
  uint32_t round_count_ = 5;
  double seconds_ = 5;
  uint64_t op_count_ = 0;
  double ratio_min_ = 0;
};

}  // namespace

std::unique_ptr<Verb> MakeBenchStoreVerb() {
  return std::make_unique<BenchCopyVerb>(CopyDirection::kStore);
}
std::unique_ptr<Verb> MakeBenchLoadVerb() {
  return std::make_unique<BenchCopyVerb>(CopyDirection::kLoad);
}

}  // namespace terrace::tools
