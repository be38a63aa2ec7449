// Asks two daemons for the same prompt, which it holds in the DRAM of both, by turns of few calls:
// what the machine does to a caller meets both alike, and what is left is the daemons' difference.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "chaos/history.h"
#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

constexpr size_t kCallsPerTurn = 20;
// A prompt that no worker has: its blocks are the probe's own.
constexpr uint32_t kProbePrompt = 1 << 20;

// One daemon, its prompt held, and how long the calls of a round took.
class Subject {
 public:
  Subject(const Traffic::Options& options, Progress* progress) : traffic_(options, progress) {}

  bool Begin() { return traffic_.Connect(kConnectUs); }
  // Has it keep and lose as many prompts as workers ask it for.
  void Fill(uint32_t prompt_count) {
    for (uint32_t i = 0; i < prompt_count && !IsTold(); ++i) {
      traffic_.Serve(i, traffic_.options().blocks_max);
    }
    traffic_.ReleaseKept();
  }
  bool Hold() {
    const bool is_held = traffic_.Hold(kProbePrompt, &leases_);
    traffic_.ReleaseKept();
    return is_held;
  }

  // False if one was not the hit that it has to be.
  bool Turn() {
    const auto keys = traffic_.Keys(kProbePrompt, traffic_.options().blocks_max);
    for (size_t i = 0; i < kCallsPerTurn; ++i) {
      const uint64_t began_ns = MonotonicNs();
      auto lease = traffic_.Acquire(keys);
      const bool is_hit = lease.ok() && lease->ready_count() == keys.size();
      if (is_hit) lease->Release();
      calls_ns_.push_back(MonotonicNs() - began_ns);
      if (!is_hit) return false;
    }
    return true;
  }
  // Of the calls since it was asked last.
  uint64_t TakeP99() {
    const auto p99 = calls_ns_.begin() + static_cast<ptrdiff_t>(calls_ns_.size() * 99 / 100);
    std::nth_element(calls_ns_.begin(), p99, calls_ns_.end());
    const uint64_t p99_ns = *p99;
    calls_ns_.clear();
    return p99_ns;
  }

 private:
  Traffic traffic_;
  std::vector<ReadLease> leases_;
  std::vector<uint64_t> calls_ns_;
};

// Who begins a turn alternates too.
void SayComparison(Subject* first, Subject* second, size_t rounds, size_t turns) {
  std::string pairs;
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < turns; ++turn) {
      Subject* const order[] = {turn % 2 == 0 ? first : second, turn % 2 == 0 ? second : first};
      if (!order[0]->Turn() || !order[1]->Turn()) {
        return Say("{\"error\": \"the prompt that is held was no hit\"}");
      }
    }
    const uint64_t first_ns = first->TakeP99();
    pairs += (round == 0 ? "[" : ", [") + std::to_string(first_ns) + ", " +
             std::to_string(second->TakeP99()) + "]";
  }
  Say("{\"p99_ns\": [%s]}", pairs.c_str());
}

}  // namespace

int RunProbe(const Arguments& arguments, Progress* progress) {
  Traffic::Options options = Traffic::ReadOptions(arguments);
  Subject first(options, progress);
  options.socket_path = arguments.Text("beside", "");
  Subject second(options, progress);
  if (!first.Begin() || !second.Begin()) return kExitCannotStart;
  second.Fill(static_cast<uint32_t>(arguments.Number("fill-beside", 0)));
  if (!first.Hold() || !second.Hold()) return kExitCannotStart;
  Say("ready");
  std::string line;
  size_t rounds = 0;
  size_t turns = 0;
  while (Listen(&line) && std::sscanf(line.c_str(), "compare %zu %zu", &rounds, &turns) == 2) {
    SayComparison(&first, &second, rounds, turns);
  }
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
