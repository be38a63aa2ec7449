// PROMISE: T40 DRAM beside a Redis in trouble
// What trouble with Redis costs those who do not need it: Acquires of prompts that are in DRAM, on
// a host without a Redis tier, on one whose server is well, and on one behind a network that
// delays, resets, cuts, garbles, swaps and swallows what it answers.
//
// All three hosts have the same traffic beside it: another client that stores new prompts and asks
// for ones that nobody has, so that the tier gives, asks and takes. The hosts are measured one
// after another in every round. Daemons are pinned to one CPU and the measuring client to another;
// what would be on other machines, the server and the network, and who causes the traffic have what
// those leave (SCHED_IDLE). Nice 19 is not enough for that: such a thread, once it runs, may keep
// its CPU for a slice of milliseconds while the client that has just got its answer waits for it.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "integration/process/redis_hosts.h"
#include "redis/chaos_proxy.h"
#include "redis/redis_process.h"

namespace terrace::test {
namespace {

using Clock = std::chrono::steady_clock;
using ::terrace::testing::ChaosProxy;
using ::terrace::testing::RedisProcess;

constexpr uint32_t kBlocks = 16;  // of a prompt
constexpr uint64_t kPrompts = 4;  // that are in DRAM

struct Settings {
  uint32_t rounds = 9;
  uint32_t milliseconds = 1500;  // of one measurement
};

void PinTo(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu % std::max(1u, std::thread::hardware_concurrency()), &set);
  (void)sched_setaffinity(0, sizeof(set), &set);
}

// The calling thread, and what it starts from now on, gives way to every thread that is not so.
// False: whoever has neither CAP_SYS_NICE nor RLIMIT_NICE of 20 does not come back from it.
bool SetIdle(bool is_idle) {
  const sched_param param{};
  return sched_setscheduler(0, is_idle ? SCHED_IDLE : SCHED_OTHER, &param) == 0;
}

// Stores what is new and asks for what nobody has, until it ends.
class Beside {
 public:
  explicit Beside(RedisHost* host) : client_(host->NewClient()), thread_([this] { Run(); }) {}
  ~Beside() {
    has_ended_ = true;
    thread_.join();
  }

 private:
  void Run() {
    (void)SetIdle(true);
    const GroupRef group = client_->Open(Model(), 1).value();
    static std::atomic<uint64_t> next_prompt{1000};
    while (!has_ended_) {
      const std::vector<BlockKey> mine = Keys(4, next_prompt++);
      auto lease = client_->Reserve(group, mine);
      if (lease.ok()) {
        for (uint32_t k = 0; k < mine.size(); ++k) {
          for (uint32_t part = 0; part < 2 && lease->is_reserved(k); ++part) {
            (void)lease->WritePart(k, 0, part, Bytes(mine[k], part));
          }
        }
        (void)client_->Commit(*lease);
      }
      (void)client_->Acquire(group, Keys(kBlocks, next_prompt++));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::unique_ptr<Client> client_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

struct Tail {
  double p50_us = 0, p99_us = 0;
};

Tail TailOf(std::vector<double>* us) {
  std::ranges::sort(*us);
  return {us->empty() ? 0 : (*us)[us->size() / 2], us->empty() ? 0 : (*us)[us->size() * 99 / 100]};
}

struct Measured {
  Tail known, mixed_known;  // alone; with every tenth Acquire for what nobody has
  uint64_t wrong_count = 0;
};

Measured Measure(RedisHost& host, const Settings& settings) {
  Measured measured;
  static uint64_t nobody = 1'000'000;
  for (const bool is_mixed : {false, true}) {
    std::vector<double> us;
    const auto end = Clock::now() + std::chrono::milliseconds(settings.milliseconds);
    for (uint64_t i = 0; Clock::now() < end; ++i) {
      if (is_mixed && i % 10 == 9) {
        (void)host.client().Acquire(host.group(), Keys(kBlocks, ++nobody));
      }
      const std::vector<BlockKey> keys = Keys(kBlocks, 1 + i % kPrompts);
      const auto start = Clock::now();
      const auto lease = host.client().Acquire(host.group(), keys);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      if (!lease.ok() || lease->ready_count() != kBlocks) ++measured.wrong_count;
      // An engine computes between its requests.
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    (is_mixed ? measured.mixed_known : measured.known) = TailOf(&us);
  }
  return measured;
}

double MedianOf(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

constexpr std::array kHosts = {"without Redis", "Redis is well", "chaos"};
constexpr size_t kWithout = 0, kWell = 1;
using Rounds = std::array<std::vector<Measured>, kHosts.size()>;

// Of one host by those of another in the same rounds, the middle one.
double RatioOf(const Rounds& rounds, size_t host, size_t other, Tail Measured::*tail,
               double Tail::*value) {
  std::vector<double> ratios;
  for (size_t round = 0; round < rounds[host].size(); ++round) {
    ratios.push_back(rounds[host][round].*tail.*value / (rounds[other][round].*tail.*value));
  }
  return MedianOf(ratios);
}

void Print(const char* what, const Rounds& rounds, Tail Measured::*tail) {
  for (size_t host = 0; host < kHosts.size(); ++host) {
    std::vector<double> p50, p99;
    for (const Measured& one : rounds[host]) {
      p50.push_back((one.*tail).p50_us);
      p99.push_back((one.*tail).p99_us);
    }
    std::printf("%-24s %-14s p50 %7.1f us  p99 %8.1f us", what, kHosts[host], MedianOf(p50),
                MedianOf(p99));
    for (const size_t other : {kWithout, kWell}) {
      if (other >= host) continue;
      std::printf("  of %s p50 %.3f p99 %.2f", kHosts[other],
                  RatioOf(rounds, host, other, tail, &Tail::p50_us),
                  RatioOf(rounds, host, other, tail, &Tail::p99_us));
    }
    std::printf("\n");
  }
}

bool Prepare(RedisHost& host) {
  if (!host.Connect()) {
    std::fprintf(stderr, "terraced does not serve: %s\n", host.daemon().Errors().c_str());
    return false;
  }
  for (uint64_t prompt = 1; prompt <= kPrompts; ++prompt) {
    if (host.Store(Keys(kBlocks, prompt)) != kBlocks) return false;
    // What is new must not push these out.
    if (!host.client().Pin(host.group(), Keys(kBlocks, prompt)).ok()) return false;
  }
  return true;
}

int Run(const Settings& settings) {
  PinTo(1);
  (void)SetIdle(true);
  const RedisProcess server;
  ChaosProxy well(server.unix_endpoint(), 1), proxy(server.unix_endpoint(), 2);
  if (!SetIdle(false)) {
    std::fprintf(stderr, "cannot leave SCHED_IDLE: run as root, or with ulimit -e 20\n");
    return 77;
  }
  PinTo(0);
  std::array<std::unique_ptr<RedisHost>, kHosts.size()> hosts;
  hosts[0] = std::make_unique<RedisHost>("", "");
  hosts[1] = std::make_unique<RedisHost>(ToText(well.endpoint()), "");
  hosts[2] = std::make_unique<RedisHost>(ToText(proxy.endpoint()), "");
  PinTo(1);
  for (const auto& host : hosts) {
    if (!Prepare(*host)) return 1;
  }
  proxy.SetFaults({.delayed = 20,
                   .reset = 2,
                   .cut = 2,
                   .shortened = 2,
                   .wrong_length = 2,
                   .garbled = 5,
                   .swapped = 5,
                   .swallowed = 2,
                   .delay_ms_min = 50,
                   .delay_ms_max = 5000});
  Rounds rounds;
  uint64_t wrong_count = 0;
  for (uint32_t round = 0; round < settings.rounds; ++round) {
    for (size_t turn = 0; turn < kHosts.size(); ++turn) {
      const size_t host = (round + turn) % kHosts.size();
      const Beside beside(hosts[host].get());
      rounds[host].push_back(Measure(*hosts[host], settings));
      wrong_count += rounds[host].back().wrong_count;
    }
  }
  Print("known prompts", rounds, &Measured::known);
  Print("every tenth is unknown", rounds, &Measured::mixed_known);
  std::printf("%lu Acquires of a known prompt were not answered in full; behind the chaos: %s\n",
              wrong_count, hosts[2]->Stats()["redis"].dump().c_str());
  return wrong_count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace terrace::test

int main(int argc, char** argv) {
  terrace::test::Settings settings;
  CLI::App app{"Acquires of known prompts while Redis is in trouble"};
  app.add_option("--rounds", settings.rounds, "of all three hosts, one after another");
  app.add_option("--milliseconds", settings.milliseconds, "of one measurement");
  CLI11_PARSE(app, argc, argv);
  if (terrace::testing::FindProgram("redis-server").empty()) {
    std::fprintf(stderr, "redis-server is not installed: run tools/setup\n");
    return 77;
  }
  return terrace::test::Run(settings);
}
