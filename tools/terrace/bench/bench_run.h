// What all benchmarks share: their arguments, the daemon they run against (their own or one that is
// there already), and their client processes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/terrace/bench/bench_client.h"
#include "tools/terrace/bench/worker_pool.h"
#include "tools/terrace/cli/private_daemon.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

struct BenchArguments {
  DaemonAddress address;
  bool is_json = false;
  bool has_own_daemon = false;  // --spawn
  std::string terraced;         // program for --spawn
  std::string dram_bytes_text;  // of the own daemon; empty: fitted to the run
  uint32_t client_count = 1;
  std::string cpu_list;
  uint32_t spin_us = ClientOptions{}.reply_spin_us;
  bool has_verify = false;

  // Set by ResolveBench.
  std::vector<int> cpus;
  uint64_t dram_bytes = 0;
};
void DeclareBench(Arguments& verb, BenchArguments* arguments);
// --clients, --pin and --verify, for the benchmarks that have them.
void DeclareClients(Arguments& verb, BenchArguments* arguments);
// Reads what has a syntax of its own. False after telling the person.
bool ResolveBench(BenchArguments* arguments);

// "64K", "1M" → bytes of a block, a whole number of equal parts. False after telling the person.
bool ParseBlockBytes(const std::string& text, uint32_t part_count, uint64_t* block_bytes);

// The daemon a run talks to: its own with --spawn, else the one of --socket.
struct BenchDaemon {
  std::unique_ptr<PrivateDaemon> own;
  BenchConnection connection;
};
// `working_bytes` of block memory are what the run wants resident. Empty after telling the person.
// REQUIRES: this process has one thread.
std::optional<BenchDaemon> FindDaemon(const BenchArguments& arguments, const BenchShape& shape,
                                      uint64_t working_bytes);

// Blocks the daemon has evicted since it started. Empty after telling the person.
// REQUIRES: this process has one thread.
std::optional<uint64_t> CountEvictions(const BenchConnection& connection, const BenchShape& shape);

// nullptr after telling the person. REQUIRES: this process has one thread.
std::unique_ptr<WorkerPool> StartWorkers(const BenchArguments& arguments, uint64_t phase_ms_max,
                                         const WorkerPool::Factory& factory);
// One phase; false after telling the person.
bool RunPhase(WorkerPool& workers, const PhaseCommand& command);

}  // namespace terrace::tools
