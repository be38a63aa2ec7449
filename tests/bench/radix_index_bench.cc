// What the RadixIndex costs, in ns and in units: one unit is one load that depends on the load
// before it, over 64 bytes a block, measured in turns with what it is the unit of. A hit includes
// the location of every block found (8 bytes each, copied out of an array by block id), pins, and
// the note of its use; insert and evict include the eviction policy's part.
//
// W1: 752,000 resident blocks, prompts of 128, the first 32 shared by 122. W2: prompts of 32, the
// first 8 shared. W3: as W1, with 10,000,000 resident blocks. Half hits end within 16 blocks of the
// middle.
//
//   taskset -c 1 radix_index_bench [--benchmark_filter=W1]
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "daemon/index/radix_index.h"
#include "daemon/policy/eviction/policies.h"

namespace terrace {
namespace {

constexpr uint32_t kPromptsPerHead = 122;
constexpr uint32_t kPromptBlocksMax = 8192;
constexpr uint32_t kPrefetchDistance = 8;
constexpr uint32_t kFootprintBytesPerBlock = 64;
constexpr uint32_t kLocationsPerLine = 8;
constexpr uint32_t kOpsPerRound = 64;
constexpr uint32_t kLoadsPerRound = 256;
constexpr int kRepetitions = 5;
constexpr uint32_t kBlocksPerTurn = 512;
constexpr uint64_t kUsPerPrompt = 100000;
constexpr uint64_t kPageBytes = 4096;

struct Shape {
  const char* name;
  uint32_t block_count;
  uint32_t prompt_blocks;
  uint32_t shared_blocks;
  const char* policy = "lru";
};

BlockKey KeyOf(uint64_t number) {
  uint64_t x = (number + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return {.low = x ^ (x >> 31), .high = x * 0xD6E8FEB86659FD93u};
}

double Median(std::vector<double>* values) {
  std::nth_element(values->begin(), values->begin() + values->size() / 2, values->end());
  return (*values)[values->size() / 2];
}

double NsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

std::vector<BlockKey> PathOf(const Shape& shape, uint32_t prompt) {
  std::vector<BlockKey> path;
  path.reserve(shape.prompt_blocks);
  for (uint32_t i = 0; i < shape.prompt_blocks; ++i) {
    const bool is_shared = i < shape.shared_blocks;
    const uint64_t chain = is_shared ? prompt / kPromptsPerHead : prompt;
    path.push_back(KeyOf((uint64_t{is_shared ? 1u : 2u} << 60) + chain * kPromptBlocksMax + i));
  }
  return path;
}

// Loads whose address is what the load before read.
class DependentLoads {
 public:
  explicit DependentLoads(size_t footprint_bytes) : next_(footprint_bytes / sizeof(uint64_t)) {
    std::iota(next_.begin(), next_.end(), 0);
    std::mt19937_64 random(1);
    for (size_t i = next_.size() - 1; i > 0; --i) {
      std::swap(next_[i], next_[random() % i]);  // one cycle
    }
  }
  // ns a load.
  double Measure() {
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < kLoadsPerRound; ++i) at_ = next_[at_];
    benchmark::DoNotOptimize(at_);
    return NsSince(start) / kLoadsPerRound;
  }

 private:
  std::vector<uint64_t> next_;
  uint64_t at_ = 0;
};

class World {
 public:
  explicit World(const Shape& shape)
      : shape_(shape),
        index_({.blocks_max = shape.block_count + (shape.block_count >> 3), .hash_seed = 7}),
        locations_(shape.block_count + (shape.block_count >> 3)),
        policy_(MakeEvictionPolicy(shape.policy, shape.block_count)),
        loads_(size_t{shape.block_count} * kFootprintBytesPerBlock) {
    while (index_.runs().live_count() + shape.prompt_blocks <= shape.block_count) {
      Insert(PathOf(prompt_count_++));
    }
  }

  std::vector<BlockKey> PathOf(uint32_t prompt) const { return terrace::PathOf(shape_, prompt); }
  std::vector<BlockKey> RandomPath() {
    return PathOf(static_cast<uint32_t>(random_() % prompt_count_));
  }
  std::vector<BlockKey> NewPath() {
    const uint32_t known = static_cast<uint32_t>(random_() % prompt_count_);
    std::vector<BlockKey> path = PathOf(known);
    for (uint32_t i = shape_.shared_blocks; i < path.size(); ++i) path[i] = KeyOf(++fresh_);
    return path;
  }

  std::vector<BlockKey> HalfKnownPath() {
    std::vector<BlockKey> path = RandomPath();
    const size_t spread = path.size() / 8;
    const size_t known_count = path.size() / 2 - spread + random_() % (2 * spread);
    for (size_t i = known_count; i < path.size(); ++i) path[i] = KeyOf(++fresh_);
    return path;
  }
  std::vector<BlockKey> UnknownPath() {
    std::vector<BlockKey> path(shape_.prompt_blocks);
    for (BlockKey& key : path) key = KeyOf(++fresh_);
    return path;
  }

  // The leading run: found, pinned, touched.
  void Match(const std::vector<BlockKey>& path, RadixIndex::Proof proof) {
    index_.Match(0, path, proof, &ranges_);
    ++now_us_;
    for (const BlockRange& range : ranges_) {
      index_.Pin(range);
      index_.Touch(range, now_us_);
    }
  }
  // Where the blocks that were matched last lie.
  void Locate() {
    uint32_t at = 0;
    for (const BlockRange& range : ranges_) {
      for (uint32_t i = 0; i < range.block_count; i += kLocationsPerLine) {
        __builtin_prefetch(&locations_[range.first + i]);
      }
      at += range.block_count;
    }
    found_.resize(at);
    at = 0;
    for (const BlockRange& range : ranges_) {
      std::memcpy(&found_[at], &locations_[range.first], range.block_count * sizeof(uint64_t));
      at += range.block_count;
    }
    benchmark::DoNotOptimize(found_.data());
  }
  // As many locations, wherever they lie: what must be copied in any case.
  void CopyLocations(uint32_t block_count) {
    found_.resize(block_count);
    const auto first = static_cast<uint32_t>(random_() % (shape_.block_count - block_count));
    std::memcpy(found_.data(), &locations_[first], block_count * sizeof(uint64_t));
    benchmark::DoNotOptimize(found_.data());
  }
  // What Match() pinned last.
  void Release() {
    for (const BlockRange& range : ranges_) index_.Unpin(range);
    ranges_.clear();
  }

  void Insert(const std::vector<BlockKey>& path) {
    now_us_ += kUsPerPrompt;
    BlockId parent = kBlockNone;
    bool is_parent_new = false;
    for (uint32_t i = 0; i < path.size(); ++i) {
      if (i + kPrefetchDistance < path.size()) index_.Prefetch(0, path[i + kPrefetchDistance]);
      BlockId id = index_.Find(0, path[i]);
      const bool is_new = id == kBlockNone;
      if (is_new) {
        if (parent != kBlockNone && !is_parent_new && index_.node(parent).child_count == 0) {
          policy_->OnHeld(parent);
        }
        id = index_.Insert(0, path[i], i, parent);
        policy_->OnInsert(id, {.key = path[i], .position = i, .parent = parent}, now_us_);
      }
      parent = id;
      is_parent_new = is_new;
    }
    if (is_parent_new) policy_->OnCandidate(parent);
  }

  // What the policy names one after the other leaves the index at once while it is of one run.
  void Evict(uint32_t block_count) {
    while (block_count > 0) {
      const BlockId last = policy_->Victim();
      const BlockId run_first = index_.runs().RunAt(last).first;
      const BlockRange run{.first = run_first, .block_count = last - run_first + 1};
      const BlockId parent = index_.node(run.first).parent;
      const uint32_t tail_max = std::min(run.block_count, block_count);
      const uint32_t tail_count =
          policy_->EraseVictims({.first = last + 1 - tail_max, .block_count = tail_max});
      const BlockId first = last + 1 - tail_count;
      if (tail_count == tail_max && tail_count < run.block_count) policy_->OnCandidate(first - 1);
      index_.EraseTail({.first = first, .block_count = tail_count}, policy_->Victim());
      block_count -= tail_count;
      if (tail_count == run.block_count && parent != kBlockNone &&
          index_.node(parent).child_count == 0) {
        policy_->OnCandidate(parent);
      }
    }
  }

  // Times what comes in turns with the unit.
  template <typename Prepare, typename Run>
  void Time(benchmark::State& state, const Prepare& prepare, const Run& run) {
    std::vector<double> ns, unit_ns;
    for (auto _ : state) {
      if (ns.size() % kOpsPerRound == 0) unit_ns.push_back(loads_.Measure());
      const auto input = prepare();
      const auto start = std::chrono::steady_clock::now();
      run(input);
      ns.push_back(NsSince(start));
      state.SetIterationTime(ns.back() / 1e9);
    }
    state.counters["ns"] = Median(&ns);
    state.counters["unit_ns"] = Median(&unit_ns);
    state.counters["units"] = state.counters["ns"] / state.counters["unit_ns"];
  }
  double MeasureUnit() { return loads_.Measure(); }
  const Shape& shape() const { return shape_; }
  bool is_full() const { return index_.runs().live_count() >= shape_.block_count; }

 private:
  const Shape shape_;
  RadixIndex index_;
  std::vector<uint64_t> locations_;  // by id
  const std::unique_ptr<EvictionPolicy> policy_;
  DependentLoads loads_;
  std::vector<BlockRange> ranges_;
  std::vector<uint64_t> found_;
  uint64_t now_us_ = 0;
  std::mt19937_64 random_{2};
  uint64_t fresh_ = uint64_t{3} << 60;
  uint32_t prompt_count_ = 0;
};

// Built once a shape, when first used.
World& WorldOf(const Shape& shape) {
  static std::map<std::string, std::unique_ptr<World>> worlds;
  auto& world = worlds[shape.name];
  if (world == nullptr) world = std::make_unique<World>(shape);
  return *world;
}

template <typename Prepare>
void TimeMatch(benchmark::State& state, World& world, RadixIndex::Proof proof,
               const Prepare& prepare) {
  const auto prepare_another = [&] {
    world.Release();
    return prepare();
  };
  world.Time(state, prepare_another, [&](const auto& path) {
    world.Match(path, proof);
    world.Locate();
  });
  world.Release();
}

void MatchFull(benchmark::State& state, World& world) {
  TimeMatch(state, world, RadixIndex::Proof::kChain, [&] { return world.RandomPath(); });
}

void MatchFullEveryKey(benchmark::State& state, World& world) {
  TimeMatch(state, world, RadixIndex::Proof::kEveryKey, [&] { return world.RandomPath(); });
}

void MatchHalf(benchmark::State& state, World& world) {
  TimeMatch(state, world, RadixIndex::Proof::kChain, [&] { return world.HalfKnownPath(); });
}

void MatchHalfEveryKey(benchmark::State& state, World& world) {
  TimeMatch(state, world, RadixIndex::Proof::kEveryKey, [&] { return world.HalfKnownPath(); });
}

void MatchMiss(benchmark::State& state, World& world) {
  TimeMatch(state, world, RadixIndex::Proof::kEveryKey, [&] { return world.UnknownPath(); });
}

void MatchAsSpans(benchmark::State& state, World& world) {
  const auto prepare = [&] {
    world.Release();
    return world.RandomPath();
  };
  world.Time(state, prepare,
             [&](const auto& path) { world.Match(path, RadixIndex::Proof::kChain); });
  world.Release();
}

void CopyLocations(benchmark::State& state, World& world) {
  const auto prepare = [&] { return world.RandomPath(); };
  world.Time(state, prepare,
             [&](const auto& path) { world.CopyLocations(static_cast<uint32_t>(path.size())); });
}

void InsertPrompt(benchmark::State& state, World& world) {
  const auto make_room = [&] {
    world.Evict(world.shape().prompt_blocks - world.shape().shared_blocks);
    return world.NewPath();
  };
  world.Time(state, make_room, [&](const auto& path) { world.Insert(path); });
}

void EvictPrompt(benchmark::State& state, World& world) {
  const auto refill = [&] {
    while (!world.is_full()) world.Insert(world.NewPath());
    return world.shape().prompt_blocks;
  };
  world.Time(state, refill, [&](uint32_t block_count) { world.Evict(block_count); });
}

double ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// 5 % of what is resident, in turns, by CPU time: it is long enough for others to come between.
void EvictMany(benchmark::State& state, World& world) {
  std::vector<double> ms, turn_us, unit_ns;
  for (auto _ : state) {
    unit_ns.push_back(world.MeasureUnit());
    while (!world.is_full()) world.Insert(world.NewPath());
    const double start_ns = ThreadCpuNs();
    for (uint32_t left = world.shape().block_count / 20; left > 0;) {
      const uint32_t turn = std::min(left, kBlocksPerTurn);
      const double turn_start_ns = ThreadCpuNs();
      world.Evict(turn);
      turn_us.push_back((ThreadCpuNs() - turn_start_ns) / 1e3);
      left -= turn;
    }
    ms.push_back((ThreadCpuNs() - start_ns) / 1e6);
    state.SetIterationTime(ms.back() / 1e3);
  }
  std::sort(turn_us.begin(), turn_us.end());
  state.counters["ms"] = Median(&ms);
  state.counters["unit_ns"] = Median(&unit_ns);
  state.counters["units_a_block"] =
      state.counters["ms"] * 1e6 / (world.shape().block_count / 20) / state.counters["unit_ns"];
  state.counters["turn_us_p50"] = turn_us[turn_us.size() / 2];
  state.counters["turn_us_p99"] = turn_us[turn_us.size() * 99 / 100];
  state.counters["turn_us_max"] = turn_us.back();
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages >> pages;
  return pages * kPageBytes;
}

// The index alone.
void TakeMemory(benchmark::State& state, const Shape& shape) {
  for (auto _ : state) {
    const uint64_t before_bytes = ResidentBytes();
    RadixIndex index({.blocks_max = shape.block_count + (shape.block_count >> 3), .hash_seed = 7});
    for (uint32_t prompt = 0; index.runs().live_count() + shape.prompt_blocks <= shape.block_count;
         ++prompt) {
      BlockId parent = kBlockNone;
      uint32_t position = 0;
      for (const BlockKey& key : PathOf(shape, prompt)) {
        const BlockId known = index.Find(0, key);
        parent = known == kBlockNone ? index.Insert(0, key, position, parent) : known;
        ++position;
      }
    }
    const auto used_bytes = static_cast<double>(ResidentBytes() - before_bytes);
    state.counters["MiB"] = used_bytes / (1 << 20);
    state.counters["bytes_per_block"] = used_bytes / index.runs().live_count();
  }
}

struct Op {
  const char* name;
  void (*run)(benchmark::State&, World&);
  int iterations;
};

void Register(const Shape& shape, const Op& op) {
  const auto run = [&shape, op](benchmark::State& state) { op.run(state, WorldOf(shape)); };
  benchmark::RegisterBenchmark((std::string(shape.name) + "/" + op.name).c_str(), run)
      ->UseManualTime()
      ->Iterations(op.iterations)
      ->Repetitions(kRepetitions)
      ->ReportAggregatesOnly();
}

void RegisterAll() {
  static constexpr Shape kShapes[] = {
      {"W1", 752'000, 128, 32}, {"W2", 752'000, 32, 8}, {"W3", 10'000'000, 128, 32}};
  constexpr Op kOps[] = {
      {"full_hit", MatchFull, 20000}, {"full_hit_every_key", MatchFullEveryKey, 20000},
      {"half_hit", MatchHalf, 20000}, {"half_hit_every_key", MatchHalfEveryKey, 20000},
      {"miss", MatchMiss, 20000},     {"insert", InsertPrompt, 2000},
      {"evict", EvictPrompt, 2000}};
  for (const Shape& shape : kShapes) {
    benchmark::RegisterBenchmark((std::string(shape.name) + "/memory").c_str(),
                                 [&shape](benchmark::State& state) { TakeMemory(state, shape); })
        ->Iterations(1);
    for (const Op& op : kOps) Register(shape, op);
  }
  static constexpr Shape kLong{"8192", 752'000, kPromptBlocksMax, 0};
  constexpr Op kLongOps[] = {{"spans", MatchAsSpans, 1000},
                             {"expanded", MatchFull, 1000},
                             {"expanded_every_key", MatchFullEveryKey, 1000},
                             {"copy_of_64_KiB", CopyLocations, 1000}};
  for (const Op& op : kLongOps) Register(kLong, op);
  static constexpr Shape kMillions[] = {{"evict_50000_of_1M_lru", 1'000'000, 128, 32, "lru"},
                                        {"evict_50000_of_1M_hazard", 1'000'000, 128, 32, "hazard"}};
  for (const Shape& shape : kMillions) Register(shape, {"turns", EvictMany, 10});
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  terrace::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
