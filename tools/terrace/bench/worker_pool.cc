#include "tools/terrace/bench/worker_pool.h"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <type_traits>

#include "tools/terrace/bench/cpu_pin.h"

namespace terrace::tools {
namespace {

static_assert(std::is_trivially_copyable_v<PhaseReport> &&
              std::is_trivially_copyable_v<PhaseCommand>);

bool SendAll(int socket, const void* bytes, size_t byte_count) {
  return send(socket, bytes, byte_count, MSG_NOSIGNAL) == static_cast<ssize_t>(byte_count);
}

// A SEQPACKET message of exactly this size; false at the end or on an error.
bool Receive(int socket, void* bytes, size_t byte_count) {
  ssize_t count = 0;
  do {
    count = recv(socket, bytes, byte_count, 0);
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(byte_count);
}

std::string HowItEnded(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return "ended";
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace

uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void PhaseReport::Fail(const std::string& reason) {
  is_failed = true;
  std::snprintf(why, sizeof(why), "%s", reason.c_str());
}

double PhaseReport::bytes_per_second() const {
  return busy_ns == 0 ? 0 : static_cast<double>(byte_count) * 1e9 / static_cast<double>(busy_ns);
}

std::unique_ptr<WorkerPool> WorkerPool::Start(const Options& options, const Factory& factory,
                                              std::string* why) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool(options));
  void* shared = mmap(nullptr, sizeof(PhaseReport) * options.worker_count, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    *why = fmt::format("cannot share memory with the workers: {}", std::strerror(errno));
    return nullptr;
  }
  pool->reports_ = static_cast<PhaseReport*>(shared);
  for (uint32_t i = 0; i < options.worker_count; ++i) {
    new (&pool->reports_[i]) PhaseReport();
    if (!pool->Fork(i, factory, why)) return nullptr;
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  for (Process& worker : workers_) close(worker.socket);  // a worker ends when its socket does
  for (Process& worker : workers_) {
    if (worker.pid < 0) continue;
    constexpr int kPatienceMs = 5000;
    constexpr int kStepMs = 10;
    int waited_ms = 0;
    while (waitpid(worker.pid, nullptr, WNOHANG) == 0 && waited_ms < kPatienceMs) {
      usleep(kStepMs * 1000);
      waited_ms += kStepMs;
    }
    if (waited_ms >= kPatienceMs) {
      kill(worker.pid, SIGKILL);
      waitpid(worker.pid, nullptr, 0);
    }
  }
  if (reports_ != nullptr) munmap(reports_, sizeof(PhaseReport) * options_.worker_count);
}

bool WorkerPool::Fork(uint32_t index, const Factory& factory, std::string* why) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    *why = fmt::format("cannot make a socket for worker {}: {}", index, std::strerror(errno));
    return false;
  }
  std::fflush(nullptr);  // or the child would print it again
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(sockets[0]);
    for (const Process& sibling : workers_) close(sibling.socket);
    RunChild(index, sockets[1], factory);
  }
  close(sockets[1]);
  if (pid < 0) {
    *why = fmt::format("cannot start worker {}: {}", index, std::strerror(errno));
    close(sockets[0]);
    return false;
  }
  workers_.push_back({.pid = pid, .socket = sockets[0]});
  return true;
}

void WorkerPool::RunChild(uint32_t index, int socket, const Factory& factory) {
  std::string why;
  std::unique_ptr<Worker> worker;
  if (options_.cpus.empty() || PinThisThread(options_.cpus[index % options_.cpus.size()], &why)) {
    worker = factory(index, &why);
  }
  PhaseReport* report = &reports_[index];
  PhaseCommand command;
  while (Receive(socket, &command, sizeof(command)) && command.phase != Phase::kQuit) {
    *report = PhaseReport();
    if (worker != nullptr) {
      worker->Run(command, report);
    } else {
      report->Fail(why);
    }
    if (!SendAll(socket, &command.phase, sizeof(command.phase))) break;
  }
  worker.reset();
  _exit(0);
}

bool WorkerPool::Run(const PhaseCommand& command, std::string* why) {
  for (const Process& worker : workers_) {
    // A worker that is gone shows below, when its report is missing.
    (void)SendAll(worker.socket, &command, sizeof(command));
  }
  const uint64_t give_up_ms = NowNs() / 1'000'000 + options_.phase_ms_max;
  bool is_done = true;
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    std::string reason;
    if (AwaitReport(i, give_up_ms, &reason)) continue;
    if (is_done) *why = fmt::format("client process {} of {}: {}", i + 1, workers_.size(), reason);
    is_done = false;
  }
  return is_done;
}

bool WorkerPool::AwaitReport(uint32_t index, uint64_t give_up_ms, std::string* why) {
  Process& worker = workers_[index];
  if (worker.pid < 0) {
    *why = "ended before";
    return false;
  }
  pollfd readable{.fd = worker.socket, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    const uint64_t now_ms = NowNs() / 1'000'000;
    const uint64_t left_ms = give_up_ms > now_ms ? give_up_ms - now_ms : 0;
    ready = poll(&readable, 1, static_cast<int>(std::min<uint64_t>(left_ms, 1u << 30)));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    *why = fmt::format("no report within {} ms: it hangs, or the machine is too slow for the run",
                       options_.phase_ms_max);
    kill(worker.pid, SIGKILL);
  }
  Phase phase;
  if (ready == 0 || !Receive(worker.socket, &phase, sizeof(phase))) {
    const std::string end = HowItEnded(worker.pid);
    worker.pid = -1;
    if (ready != 0) *why = end;
    return false;
  }
  if (reports_[index].is_failed) {
    *why = reports_[index].why;
    return false;
  }
  return true;
}

PhaseReport WorkerPool::Total() const {
  PhaseReport total;
  for (uint32_t i = 0; i < worker_count(); ++i) {
    const PhaseReport& one = reports_[i];
    total.op_count += one.op_count;
    total.block_count += one.block_count;
    total.byte_count += one.byte_count;
    total.busy_ns = std::max(total.busy_ns, one.busy_ns);
    total.blocks_asked += one.blocks_asked;
    total.blocks_hit += one.blocks_hit;
    total.blocks_stored += one.blocks_stored;
    total.blocks_refused += one.blocks_refused;
    total.blocks_verified += one.blocks_verified;
    total.request_bytes = one.request_bytes;
    total.reply_bytes = one.reply_bytes;
    total.latencies.Add(one.latencies);
  }
  return total;
}

double WorkerPool::TotalBytesPerSecond() const {
  double total = 0;
  for (uint32_t i = 0; i < worker_count(); ++i) total += reports_[i].bytes_per_second();
  return total;
}

}  // namespace terrace::tools
