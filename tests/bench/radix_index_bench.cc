// What the RadixIndex costs, in ns and in units: one unit is one load that depends on the load
// before it, over as much memory as the index takes, measured in the same run. A prompt's keys are
// looked up in order until one is missing, as the store does; an op
// includes the position and the parent of every block found, and LRU's touch of the run.
//
// W1: 752,000 resident blocks, prompts of 128, the first 32 shared by 122. W2: prompts of 32, the
// first 8 shared. W3: as W1, with 10,000,000 resident blocks.
//
//   taskset -c 1 radix_index_bench [--benchmark_filter=W1]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "daemon/eviction/lru.h"
#include "daemon/radix_index.h"

namespace terrace {
namespace {

constexpr uint32_t kPromptsPerHead = 122;
constexpr uint32_t kPrefetchDistance = 8;
constexpr uint32_t kIndexBytesPerBlock = 64;
constexpr uint32_t kRounds = 1000;
constexpr uint32_t kLoadsPerRound = 256;

struct Shape {
  const char* name;
  uint32_t block_count;
  uint32_t prompt_blocks;
  uint32_t shared_blocks;
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

// Median ns of a load whose address is what the load before it read.
double MeasureUnit(size_t footprint_bytes) {
  std::vector<uint64_t> next(footprint_bytes / sizeof(uint64_t));
  std::iota(next.begin(), next.end(), 0);
  std::mt19937_64 random(1);
  for (size_t i = next.size() - 1; i > 0; --i) std::swap(next[i], next[random() % i]);  // one cycle
  uint64_t at = 0;
  std::vector<double> ns;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < kLoadsPerRound; ++i) at = next[at];
    const std::chrono::duration<double, std::nano> passed =
        std::chrono::steady_clock::now() - start;
    benchmark::DoNotOptimize(at);
    ns.push_back(passed.count() / kLoadsPerRound);
  }
  return Median(&ns);
}

class World {
 public:
  explicit World(const Shape& shape)
      : shape_(shape),
        index_({.blocks_max = shape.block_count + (shape.block_count >> 3), .hash_seed = 7}) {
    while (index_.live_count() + shape.prompt_blocks <= shape.block_count) {
      Insert(PathOf(prompt_count_++));
    }
    unit_ns_ = MeasureUnit(size_t{shape.block_count} * kIndexBytesPerBlock);
  }

  std::vector<BlockKey> PathOf(uint32_t prompt) const {
    std::vector<BlockKey> path;
    for (uint32_t i = 0; i < shape_.prompt_blocks; ++i) {
      const uint64_t chain = i < shape_.shared_blocks ? prompt / kPromptsPerHead : prompt;
      const uint64_t kind = i < shape_.shared_blocks ? 1 : 2;
      path.push_back(KeyOf((kind << 60) + chain * 4096 + i));
    }
    return path;
  }
  std::vector<BlockKey> RandomPath() {
    return PathOf(static_cast<uint32_t>(random_() % prompt_count_));
  }
  std::vector<BlockKey> NewPath() {
    const uint32_t known = static_cast<uint32_t>(random_() % prompt_count_);
    std::vector<BlockKey> path = PathOf(known);
    for (uint32_t i = shape_.shared_blocks; i < path.size(); ++i) path[i] = KeyOf(++fresh_);
    return path;
  }

  // The leading run.
  void Match(const std::vector<BlockKey>& path, std::vector<BlockId>* run) {
    run->clear();
    BlockId id = kBlockNone;
    for (const BlockKey& key : path) {
      id = index_.FindNext(0, key, id);
      if (id == kBlockNone) break;
      run->push_back(id);
    }
    if (!run->empty()) lru_.OnTouch(*run, {});
  }

  void Insert(const std::vector<BlockKey>& path) {
    BlockId parent = kBlockNone;
    bool is_parent_new = false;
    for (uint32_t i = 0; i < path.size(); ++i) {
      if (i + kPrefetchDistance < path.size()) index_.Prefetch(path[i + kPrefetchDistance]);
      BlockId id = index_.FindNext(0, path[i], parent);
      const bool is_new = id == kBlockNone;
      if (is_new) {
        id = index_.Insert(0, path[i], i);
        if (parent != kBlockNone) {
          if (!is_parent_new && index_.node(parent).child_count == 0) lru_.OnHeld(parent);
          index_.Link(id, parent);
        }
        lru_.OnInsert(id, {.key = path[i], .position = i, .parent = parent}, 0);
      }
      parent = id;
      is_parent_new = is_new;
    }
    if (is_parent_new) lru_.OnCandidate(parent);
  }

  void Evict(uint32_t block_count) {
    for (uint32_t i = 0; i < block_count; ++i) {
      const BlockId id = lru_.Victim();
      const BlockId parent = index_.node(id).parent;
      lru_.OnHeld(id);
      lru_.OnErase(id);
      index_.Erase(id);
      index_.Recycle(id);
      if (parent != kBlockNone && index_.node(parent).child_count == 0) lru_.OnCandidate(parent);
    }
  }

  void Report(benchmark::State& state, std::vector<double>* ns) const {
    state.counters["p50_ns"] = Median(ns);
    state.counters["p50_units"] = Median(ns) / unit_ns_;
    state.counters["unit_ns"] = unit_ns_;
  }
  const Shape& shape() const { return shape_; }

 private:
  const Shape shape_;
  RadixIndex index_;
  LruPolicy lru_;
  std::mt19937_64 random_{2};
  uint64_t fresh_ = uint64_t{3} << 60;
  uint32_t prompt_count_ = 0;
  double unit_ns_ = 0;
};

// Built once a shape, when first used.
World& WorldOf(const Shape& shape) {
  static std::map<std::string, std::unique_ptr<World>> worlds;
  auto& world = worlds[shape.name];
  if (world == nullptr) world = std::make_unique<World>(shape);
  return *world;
}

template <typename Prepare, typename Op>
void Time(benchmark::State& state, World& world, const Prepare& prepare, const Op& op) {
  std::vector<double> ns;
  for (auto _ : state) {
    const auto input = prepare();
    const auto start = std::chrono::steady_clock::now();
    op(input);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(passed.count());
    ns.push_back(passed.count() * 1e9);
  }
  world.Report(state, &ns);
}

void MatchFull(benchmark::State& state, const Shape& shape) {
  World& world = WorldOf(shape);
  std::vector<BlockId> run;
  Time(
      state, world, [&] { return world.RandomPath(); },
      [&](const auto& path) { world.Match(path, &run); });
}

void MatchHalf(benchmark::State& state, const Shape& shape) {
  World& world = WorldOf(shape);
  std::vector<BlockId> run;
  const auto half_known = [&] {
    std::vector<BlockKey> path = world.RandomPath();
    for (size_t i = path.size() / 2; i < path.size(); ++i) path[i] = KeyOf((uint64_t{4} << 60) + i);
    return path;
  };
  Time(state, world, half_known, [&](const auto& path) { world.Match(path, &run); });
}

void MatchMiss(benchmark::State& state, const Shape& shape) {
  World& world = WorldOf(shape);
  std::vector<BlockId> run;
  uint64_t number = uint64_t{5} << 60;
  const auto unknown = [&] {
    std::vector<BlockKey> path(shape.prompt_blocks);
    for (BlockKey& key : path) key = KeyOf(++number);
    return path;
  };
  Time(state, world, unknown, [&](const auto& path) { world.Match(path, &run); });
}

void InsertPrompt(benchmark::State& state, const Shape& shape) {
  World& world = WorldOf(shape);
  const auto make_room = [&] {
    world.Evict(shape.prompt_blocks - shape.shared_blocks);
    return world.NewPath();
  };
  Time(state, world, make_room, [&](const auto& path) { world.Insert(path); });
}

void EvictPrompt(benchmark::State& state, const Shape& shape) {
  World& world = WorldOf(shape);
  const auto refill = [&] {
    world.Insert(world.NewPath());
    return 0;
  };
  Time(state, world, refill, [&](int) { world.Evict(shape.prompt_blocks - shape.shared_blocks); });
}

constexpr Shape kShapes[] = {
    {"W1", 752'000, 128, 32}, {"W2", 752'000, 32, 8}, {"W3", 10'000'000, 128, 32}};

void RegisterAll() {
  struct Op {
    const char* name;
    void (*run)(benchmark::State&, const Shape&);
    int iterations;
  };
  constexpr Op kOps[] = {{"full_hit", MatchFull, 20000},
                         {"half_hit", MatchHalf, 20000},
                         {"miss", MatchMiss, 20000},
                         {"insert", InsertPrompt, 2000},
                         {"evict", EvictPrompt, 2000}};
  for (const Shape& shape : kShapes) {
    for (const Op& op : kOps) {
      benchmark::RegisterBenchmark((std::string(shape.name) + "/" + op.name).c_str(), op.run, shape)
          ->UseManualTime()
          ->Iterations(op.iterations);
    }
  }
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  terrace::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
