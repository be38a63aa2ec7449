// Client processes of a benchmark: forked from this one before it has any thread, told phase by
// phase what to do. Reports come back through memory that the processes share.
//
// THREADING: one thread a process; the pool is used by the parent's only thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/terrace/bench/samples.h"

namespace terrace::tools {

inline constexpr uint32_t kWorkersMax = 256;

enum class Phase : uint32_t {
  kPrepare,  // connect, allocate, fill what has to be there
  kFloor,    // the comparison without Terrace
  kTerrace,  // what is measured
  kCheck,    // read back and compare everything
  kQuit,
};

struct PhaseCommand {
  Phase phase = Phase::kPrepare;
  uint32_t round = 0;
  uint64_t busy_ns_max = 0;  // measured time after which the worker ends the phase
  uint64_t op_count_max = 0;
};

// What one worker did in one phase. Trivially copyable.
struct PhaseReport {
  uint64_t op_count = 0;
  uint64_t block_count = 0;  // moved, on whichever side is measured
  uint64_t byte_count = 0;
  uint64_t busy_ns = 0;  // measured time, without checks and clean-up
  uint64_t blocks_asked = 0;
  uint64_t blocks_hit = 0;
  uint64_t blocks_stored = 0;
  uint64_t blocks_refused = 0;   // reserved by somebody else, or no space
  uint64_t blocks_verified = 0;  // every byte compared
  uint64_t request_bytes = 0;    // rtt: on the socket
  uint64_t reply_bytes = 0;
  LatencyHistogram latencies;
  bool is_failed = false;
  char why[768] = {};

  void Fail(const std::string& reason);
  double bytes_per_second() const;
};

class Worker {
 public:
  virtual ~Worker() = default;
  virtual void Run(const PhaseCommand& command, PhaseReport* report) = 0;
};

class WorkerPool {
 public:
  // Runs in the child, where it may start threads. nullptr with `*why` ends the phase with that
  // reason.
  using Factory = std::function<std::unique_ptr<Worker>(uint32_t index, std::string* why)>;
  struct Options {
    uint32_t worker_count = 1;
    std::vector<int> cpus;      // worker i runs on cpus[i % size]; empty: anywhere
    uint64_t phase_ms_max = 0;  // > 0; a worker that needs longer has hung
  };
  // REQUIRES: this process has one thread.
  static std::unique_ptr<WorkerPool> Start(const Options& options, const Factory& factory,
                                           std::string* why);
  // Ends the workers.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // All workers at once; false with the first failed worker's reason. The reports stay until the
  // next Run.
  bool Run(const PhaseCommand& command, std::string* why);
  const PhaseReport& report(uint32_t index) const { return reports_[index]; }
  uint32_t worker_count() const { return static_cast<uint32_t>(workers_.size()); }
  // Sum over all workers; is_failed and why stay empty.
  PhaseReport Total() const;
  double TotalBytesPerSecond() const;

 private:
  struct Process {
    pid_t pid = -1;
    int socket = -1;
  };
  explicit WorkerPool(const Options& options) : options_(options) {}
  bool Fork(uint32_t index, const Factory& factory, std::string* why);
  [[noreturn]] void RunChild(uint32_t index, int socket, const Factory& factory);
  bool AwaitReport(uint32_t index, uint64_t give_up_ms, std::string* why);

  Options options_;
  std::vector<Process> workers_;
  PhaseReport* reports_ = nullptr;  // shared mapping, one a worker
};

uint64_t NowNs();  // CLOCK_MONOTONIC, the same in all processes

}  // namespace terrace::tools
