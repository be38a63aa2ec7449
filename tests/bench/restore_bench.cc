// How long a store takes to make blocks of what a persistent tier still holds: records come as a
// scan of the tables would bring them, mostly in the order of their chains. No disk is read.
//
//   restore_bench [BLOCKS [POLICY]]      defaults: 1000000 lru
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
constexpr uint32_t kChainBlocks = 64;

// Holds what it is told it holds.
class FullTier final : public Tier {
 public:
  TierKind kind() const override { return TierKind::kNvme; }
  Result<Extent> Allocate(uint32_t, uint64_t, uint32_t) override {
    return Status(StatusCode::kNoSpace);
  }
  void Free(const Extent&) override {}
  Status Read(TransferId, const Extent&, std::span<std::byte>) override {
    return Status(StatusCode::kBusy);
  }
  Status Write(TransferId, const Extent&, const BlockRecord&, std::span<const std::byte>) override {
    return Status(StatusCode::kBusy);
  }
  uint64_t PredictReadUs(uint64_t) const override { return 100; }
  bool is_persistent() const override { return true; }
  TierStats stats() const override { return {}; }
};

struct Watch {
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  double Us() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since)
        .count();
  }
};

void Run(uint32_t block_count, const std::string& policy) {
  NoClock clock;
  NoRandom random;
  NoOffload offload;
  NoArena arena;
  NoListener listener;
  FullTier tier;
  std::vector<std::byte> slot_table(SlotTableBytes(kSegmentBytesMin, 1));
  StoreOptions options;
  options.segments_total = 1;
  options.fenced_bytes_max = kGiB;
  options.lower_eviction_policy = policy;
  options.domains.push_back({.name = "bench",
                             .segment_bytes = kSegmentBytesMin,
                             .segments_max = 1,
                             .arena = &arena,
                             .slot_table = slot_table,
                             .lower_tiers = {&tier}});
  Store store(std::move(options), clock, random, offload, listener);
  const SpaceGroupSpec group = OneMember(kSlotBytes);
  if (!store.restoration().RestoreGroup(0, group).ok()) std::abort();
  const Checksum root{1, 2};
  BlockRecord record;
  record.group = group.Id();
  record.space = group.members[0].spec.Id();
  record.commit_id = 1;
  record.part_checksums = {&root, 1};
  const Watch copies;
  uint64_t wanted_count = 0;
  for (uint32_t i = 0; i < block_count; ++i) {
    record.position = i % kChainBlocks;
    record.parent = record.position == 0 ? BlockKey{} : record.key;
    record.key = {random.Next(), random.Next()};
    record.epoch = i;
    const Extent extent{.position = i, .length_bytes = kSlotBytes};
    wanted_count += store.restoration().RestoreCopy(0, 0, record, extent) != kOwnerNone ? 1 : 0;
  }
  const double copies_us = copies.Us();
  const Watch finish;
  const RestoreSummary summary = store.restoration().FinishRestore(0);
  const double finish_us = finish.Us();
  if (wanted_count != block_count || summary.blocks != block_count) std::abort();
  std::printf("%u blocks, %s: copies %.3f us a block, finish %.3f us a block, %.0f ms in all\n",
              block_count, policy.c_str(), copies_us / block_count, finish_us / block_count,
              (copies_us + finish_us) / 1000);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const int block_count = argc > 1 ? std::atoi(argv[1]) : 1'000'000;
  if (block_count <= 0) {
    std::fprintf(stderr, "usage: restore_bench [BLOCKS [POLICY]]\n");
    return 2;
  }
  terrace::Run(static_cast<uint32_t>(block_count), argc > 2 ? argv[2] : "lru");
  return 0;
}
