#include "tools/terrace/bench/bench_run.h"

#include <fmt/core.h>
#include <unistd.h>

#include "terrace/arena_layout.h"
#include "terrace/units.h"
#include "tools/terrace/bench/cpu_pin.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kBlockBytesMin = 4 * kKiB;

// Beside the slots an arena holds extents that waste a little, and room to reserve while full.
uint64_t FittedDramBytes(const BenchShape& shape, uint64_t working_bytes) {
  const uint64_t block_count = working_bytes / shape.block_bytes + 1;
  const uint64_t slots_bytes = block_count * shape.slot_bytes();
  return slots_bytes + slots_bytes / 8 + 4 * shape.slot_bytes() + 8 * kExtentUnitBytes;
}

// Asks the daemon for its counters, in a process of its own since this one must stay without
// threads. kPrepare: until all memory is populated; kTerrace: blocks evicted so far, as
// block_count.
class StatsWorker : public Worker {
 public:
  explicit StatsWorker(std::unique_ptr<BenchClient> client) : client_(std::move(client)) {}

  void Run(const PhaseCommand& command, PhaseReport* report) override {
    constexpr uint32_t kPauseUs = 5'000;
    constexpr uint64_t kDeadlineUs = 30'000'000;  // nobody waits for it but this
    while (true) {
      Result<std::string> text = client_->client().Stats(kDeadlineUs);
      if (!text.ok()) return report->Fail(client_->Explain("Stats failed", text.status()));
      std::string why;
      Result<StatsView> stats = StatsView::Parse(*text, &why);
      if (!stats.ok()) return report->Fail("the daemon's answer to Stats " + why);
      report->block_count = stats->Count("blocks_evicted").value_or(0);
      if (command.phase != Phase::kPrepare ||
          stats->Count("segments_populated") == stats->Count("segments_max")) {
        return;
      }
      usleep(kPauseUs);
    }
  }

 private:
  std::unique_ptr<BenchClient> client_;
};

std::optional<uint64_t> AskStats(const BenchConnection& connection, const BenchShape& shape,
                                 Phase phase) {
  constexpr uint64_t kPatienceMs = 60'000;
  std::string why;
  auto worker = WorkerPool::Start(
      {.worker_count = 1, .cpus = {}, .phase_ms_max = kPatienceMs},
      [&](uint32_t, std::string* reason) -> std::unique_ptr<Worker> {
        auto client = BenchClient::Connect(connection, shape, reason);
        if (client == nullptr) return nullptr;
        return std::make_unique<StatsWorker>(std::move(client));
      },
      &why);
  if (worker == nullptr || !worker->Run({.phase = phase}, &why)) {
    Fail(why);
    return std::nullopt;
  }
  return worker->report(0).block_count;
}

// A run against a daemon that takes nothing would be one against nothing.
bool IsServed(const DaemonAddress& address) {
  const auto link = AdminLink::Open(address);
  const auto stats = link == nullptr ? std::nullopt : FetchStats(*link);
  if (!stats) return false;
  const std::string why = WhyUnserved(*stats);
  return why.empty() || Fail(why) == kExitOk;
}

}  // namespace

std::optional<uint64_t> CountEvictions(const BenchConnection& connection, const BenchShape& shape) {
  return AskStats(connection, shape, Phase::kTerrace);
}

void DeclareBench(Arguments& verb, BenchArguments* arguments) {
  const Argument spawn =
      verb.AddFlag("--spawn", arguments->has_own_daemon,
                   "Start a daemon for this run alone, with memory to fit, and end it afterwards");
  verb.AddOption("--terraced", arguments->terraced,
                 "The daemon's program for --spawn (default: beside this one, else in PATH)")
      .Type("PATH")
      .Needs(spawn);
  verb.AddOption("--dram-bytes", arguments->dram_bytes_text,
                 "Memory of the --spawn daemon (default: what the run fills)")
      .Type("SIZE")
      .Needs(spawn);
  verb.AddOption("--spin-us", arguments->spin_us,
                 "A waiting client polls this long before it sleeps")
      .Type("US")
      .ShowDefault()
      .Between(0u, 1'000'000u);
  DeclareAddress(verb, &arguments->address);
  DeclareJson(verb, &arguments->is_json);
}

void DeclareClients(Arguments& verb, BenchArguments* arguments) {
  verb.AddOption("--clients", arguments->client_count, "Client processes")
      .Type("N")
      .ShowDefault()
      .Between(1u, kWorkersMax);
  verb.AddOption("--pin", arguments->cpu_list,
                 "CPUs the client processes are pinned to in turn, e.g. 0,2-3")
      .Type("CPUS");
  verb.AddFlag("--verify", arguments->has_verify,
               "Derive every block's bytes from its key and compare every loaded byte; the "
               "comparison is not part of the measured time");
}

bool ResolveBench(BenchArguments* arguments) {
  std::string why;
  if (!arguments->cpu_list.empty() && !ParseCpuList(arguments->cpu_list, &arguments->cpus, &why)) {
    Fail("--pin: " + why);
    return false;
  }
  if (!arguments->dram_bytes_text.empty() &&
      (!ParseBytes(arguments->dram_bytes_text, &arguments->dram_bytes) ||
       arguments->dram_bytes == 0)) {
    Fail(fmt::format("--dram-bytes is '{}'; {}", arguments->dram_bytes_text, WantedBytes("8GiB")));
    return false;
  }
  return true;
}

bool ParseBlockBytes(const std::string& text, uint32_t part_count, uint64_t* block_bytes) {
  if (!ParseBytes(text, block_bytes) || *block_bytes < kBlockBytesMin ||
      *block_bytes > kSegmentBytesMax) {
    Fail(fmt::format("--block-bytes: '{}' is no block size. Write {} to {}, e.g. 64K or 1M", text,
                     FormatBytes(kBlockBytesMin), FormatBytes(kSegmentBytesMax)));
    return false;
  }
  if (*block_bytes % part_count != 0) {
    Fail(fmt::format("--block-bytes: {} bytes are no whole number of --parts {}. Use a multiple",
                     *block_bytes, part_count));
    return false;
  }
  return true;
}

std::optional<BenchDaemon> FindDaemon(const BenchArguments& arguments, const BenchShape& shape,
                                      uint64_t working_bytes) {
  BenchDaemon daemon;
  daemon.connection = {.socket_path = arguments.address.path(),
                       .deadline_us = arguments.address.deadline_us(),
                       .reply_spin_us = arguments.spin_us};
  std::string why;
  if (!arguments.has_own_daemon) {
    why = WhyNobodyListens(daemon.connection.socket_path);
    if (why.empty() && !IsServed(arguments.address)) return std::nullopt;
    if (why.empty()) return daemon;
    Fail(why + ". Or let the benchmark start one of its own: --spawn");
    return std::nullopt;
  }
  const uint64_t dram_bytes =
      arguments.dram_bytes > 0 ? arguments.dram_bytes : FittedDramBytes(shape, working_bytes);
  daemon.own = PrivateDaemon::Start({.program = arguments.terraced,
                                     .dram_bytes = dram_bytes,
                                     .slot_bytes_max = shape.slot_bytes()},
                                    &why);
  if (daemon.own == nullptr) {
    Fail("--spawn: " + why);
    return std::nullopt;
  }
  daemon.connection.socket_path = daemon.own->socket_path();
  // It serves before all its memory is there; a run that starts then would measure that.
  if (!AskStats(daemon.connection, shape, Phase::kPrepare)) return std::nullopt;
  return daemon;
}

std::unique_ptr<WorkerPool> StartWorkers(const BenchArguments& arguments, uint64_t phase_ms_max,
                                         const WorkerPool::Factory& factory) {
  std::string why;
  auto workers = WorkerPool::Start({.worker_count = arguments.client_count,
                                    .cpus = arguments.cpus,
                                    .phase_ms_max = phase_ms_max},
                                   factory, &why);
  if (workers == nullptr) Fail(why);
  return workers;
}

bool RunPhase(WorkerPool& workers, const PhaseCommand& command) {
  std::string why;
  if (workers.Run(command, &why)) return true;
  Fail(why);
  return false;
}

}  // namespace terrace::tools
