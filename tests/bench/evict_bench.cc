// How long a full store takes to make room, by eviction policy: every prompt of BATCH new blocks
// pushes as many out. No byte moves. With "told" routers hear of every block.
//
//   evict_bench [BLOCKS [BATCH [POLICY [told]]]]      defaults: 262144 64 lru
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/no_seams.h"
#include "daemon/store/store.h"
#include "tiers/arena/slot_table.h"

namespace terrace {
namespace {

constexpr uint64_t kSlotBytes = 64 * kKiB;
constexpr uint32_t kReuseEvery = 4;  // every so many prompts an older one is asked for again

class CountingSink final : public KvEventSink {
 public:
  uint32_t StreamOf(uint32_t, const SpaceGroupSpec&) override { return 0; }
  void EndStream(uint32_t) override {}
  void Publish(std::span<const KvEvent> events) override {
    for (const KvEvent& event : events) removed_count += event.kind == KvEvent::Kind::kRemoved;
  }
  bool HasRoom(size_t) const override { return true; }
  uint64_t removed_count = 0;
};

struct BenchOptions {
  uint32_t block_count = 262'144;
  uint32_t batch_blocks = 64;
  std::string policy = "lru";
  bool is_told = false;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& bench)
      : segments_(static_cast<uint32_t>(
            RoundUp(bench.block_count * kSlotBytes, kSegmentBytesDefault) / kSegmentBytesDefault)),
        batch_blocks_(bench.batch_blocks),
        table_(SlotTableBytes(kSegmentBytesDefault, segments_)) {
    StoreOptions options;
    options.segments_total = segments_;
    options.fenced_bytes_max = kGiB;
    options.eviction_policy = bench.policy;
    options.domains.push_back(
        {.name = "bench", .segments_max = segments_, .arena = &arena_, .slot_table = table_});
    if (bench.is_told) options.domains[0].kv_events = &sink_;
    store_ = std::make_unique<Store>(std::move(options), clock_, random_, offload_, listener_);
    OpenedGroup group;
    if (!store_->sessions().Open({.id = 1}).ok() ||
        !store_->sessions().OpenGroup(1, OneMember(kSlotBytes), &group).ok()) {
      std::abort();
    }
  }

  // Microseconds of the store call that makes room for a prompt's blocks.
  double Put() {
    std::vector<BlockKey> keys;
    for (uint32_t i = 0; i < batch_blocks_; ++i) keys.push_back({random_.Next(), random_.Next()});
    std::vector<uint64_t> hashes;
    for (const BlockKey& key : keys) hashes.push_back(key.low | 1);
    const KeysQuery query{.session = 1,
                          .request_id = ++requests_,
                          .member_mask = 1,
                          .keys = keys,
                          .event_hashes = hashes};
    ReserveResult reserved;
    Populate();
    clock_.now_us += 20'000;
    const auto since = std::chrono::steady_clock::now();
    if (!store_->storing().Reserve(&reserved).Step(query).ok()) std::abort();
    const double took_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since).count();
    Commit(reserved);
    recent_.push_back(std::move(keys));
    return took_us;
  }
  void Reuse() {
    const auto& keys = recent_[recent_.size() - 1 - random_.Next() % recent_.size()];
    const KeysQuery query{.session = 1, .request_id = ++requests_, .member_mask = 1, .keys = keys};
    AcquireResult found;
    if (!store_->prefixes().Acquire(&found).Step(query).ok()) std::abort();
    if (!found.reply.token.is_zero() &&
        !store_->leases().Release(1, {.token = found.reply.token}).ok()) {
      std::abort();
    }
  }
  uint64_t evicted_count() const { return store_->Stats()[0].blocks_evicted; }
  uint64_t told_count() const { return sink_.removed_count; }

 private:
  void Populate() {
    while (!arena_.wanted.empty()) {
      const uint32_t segment = arena_.wanted.back();
      arena_.wanted.pop_back();
      store_->events().OnSegmentPopulated(0, segment, Status::Ok());
    }
  }
  void Commit(const ReserveResult& reserved) {
    std::vector<protocol::CommitEntry> entries;
    for (uint32_t i = 0; i < reserved.slots.size(); ++i) {
      entries.push_back({.key_index = i,
                         .flags = protocol::kCommitHasChecksums,
                         .part_count = 1,
                         .row = reserved.slots[i].row,
                         .segment = reserved.slots[i].address.segment,
                         .generation = reserved.slots[i].generation});
    }
    const std::vector<Checksum> roots(entries.size(), Checksum{1, 2});
    CommitResult result;
    const protocol::CommitRequest request{.token = reserved.reply.token,
                                          .entry_count = static_cast<uint32_t>(entries.size()),
                                          .flags = protocol::kCommitRelease};
    if (!store_->storing().Commit(1, request, entries, roots, &result).ok()) std::abort();
  }

  const uint32_t segments_;
  const uint32_t batch_blocks_;
  std::vector<std::byte> table_;
  StepClock clock_;
  NoRandom random_;
  NoOffload offload_;
  QueuedArena arena_;
  NoListener listener_;
  CountingSink sink_;
  std::unique_ptr<Store> store_;
  std::vector<std::vector<BlockKey>> recent_;
  uint64_t requests_ = 0;
};

void Run(const BenchOptions& options) {
  Bench bench(options);
  const uint32_t prompts = options.block_count / options.batch_blocks;
  for (uint32_t i = 0; i < prompts + 16; ++i) bench.Put();
  std::vector<double> took_us;
  const uint64_t before = bench.evicted_count();
  const uint64_t told_before = bench.told_count();
  for (uint32_t i = 0; i < prompts; ++i) {
    if (i % kReuseEvery == 0) bench.Reuse();
    took_us.push_back(bench.Put());
  }
  std::sort(took_us.begin(), took_us.end());
  double sum_us = 0;
  for (const double us : took_us) sum_us += us;
  const auto at = [&](double share) {
    return took_us[static_cast<size_t>(share * static_cast<double>(took_us.size() - 1))];
  };
  std::printf(
      "%s, %u blocks, %u a prompt: %.2f us a block; a prompt %.0f us, p99 %.0f, max %.0f"
      " (%llu evicted, %llu told)\n",
      options.policy.c_str(), options.block_count, options.batch_blocks,
      sum_us / prompts / options.batch_blocks, at(0.5), at(0.99), took_us.back(),
      static_cast<unsigned long long>(bench.evicted_count() - before),
      static_cast<unsigned long long>(bench.told_count() - told_before));
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const int block_count = argc > 1 ? std::atoi(argv[1]) : 262'144;
  const int batch_blocks = argc > 2 ? std::atoi(argv[2]) : 64;
  if (batch_blocks <= 0 || batch_blocks > 1024 || block_count < batch_blocks) {
    std::fprintf(stderr, "usage: evict_bench [BLOCKS [BATCH [POLICY [told]]]]\n");
    return 2;
  }
  terrace::Run({.block_count = static_cast<uint32_t>(block_count),
                .batch_blocks = static_cast<uint32_t>(batch_blocks),
                .policy = argc > 3 ? argv[3] : "lru",
                .is_told = argc > 4});
  return 0;
}
