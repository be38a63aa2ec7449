// The capacity goes down and up while blocks are stored and read, and a daemon ends anywhere on the
// way: the files come down to what they may take, nothing that was erased comes back, and no wrong
// byte ever verifies. TERRACE_SIM_SEEDS: how many worlds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "sim/nvme_world.h"

namespace terrace::sim {
namespace {

uint64_t SeedCount(uint64_t otherwise) {
  const char* text = std::getenv("TERRACE_SIM_SEEDS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

void Add(const NvmeWorld::Counts& one, NvmeWorld::Counts* sum) {
  sum->shrinks += one.shrinks;
  sum->cuts += one.cuts;
  sum->reads_right += one.reads_right;
  sum->restored += one.restored;
  sum->lies += one.lies;
  sum->moved += one.moved;
}

TEST(NvmeResize, AShrinkThatIsCutOffAnywhereIsFinishedByTheNextDaemon) {
  constexpr NvmeWorld::Ending kEndings[] = {NvmeWorld::Ending::kKill, NvmeWorld::Ending::kPowerLoss,
                                            NvmeWorld::Ending::kCleanStop};
  NvmeWorld::Counts sum;
  const uint64_t seeds = SeedCount(300);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    NvmeWorld world({.seed = seed, .disk_count = 1 + seed % 2, .slab_count = 8, .resizes = true});
    for (int life = 0; life < 3; ++life) {
      world.Run(200 + seed % 150);
      if ((seed + life) % 2 == 0) world.Settle();  // no loss of power loses what is there now
      world.Resize(1 + seed % 3);
      world.Run(seed % 97);  // the first slabs are on their way out
      world.Restart(kEndings[(seed + life) % 3]);
    }
    world.Settle();
    EXPECT_LE(world.file_bytes(), world.capacity_bytes());
    world.Resize(8);
    world.Run(300);
    world.Settle();
    for (const std::string& complaint : world.complaints()) {
      ADD_FAILURE() << "seed " << seed << ": " << complaint;
    }
    if (HasFailure()) return;
    Add(world.counts(), &sum);
  }
  std::cout << seeds << " worlds: " << sum.shrinks << " shrinks, " << sum.cuts
            << " daemons began above the capacity, " << sum.moved << " blocks moved, "
            << sum.restored << " restored, " << sum.reads_right << " read, lies " << sum.lies
            << "\n";
  EXPECT_EQ(sum.lies, 0u);
  EXPECT_GT(sum.cuts, seeds / 4) << "no shrink was cut off: no test";
  EXPECT_GT(sum.reads_right, seeds * 10);
  EXPECT_GT(sum.moved, seeds) << "nothing was moved: no test";
}

TEST(NvmeResize, FailingDisksDelayAShrinkAndNothingElse) {
  NvmeWorld::Counts sum;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    NvmeWorld world({.seed = seed, .disk_count = 1 + seed % 2, .slab_count = 8, .resizes = true});
    for (size_t index = 0; index < world.rig().disk_count(); ++index) {
      SimDisk& disk = world.rig().disk(index);
      for (const DiskFault fault : {DiskFault::kReadFails, DiskFault::kWriteFails,
                                    DiskFault::kShort, DiskFault::kCreateNoSpace,
                                    DiskFault::kSyncFails, DiskFault::kBusy, DiskFault::kStuck}) {
        disk.SetRate(fault, fault == DiskFault::kStuck ? 2'000 : 20'000 * (1 + seed % 3));
      }
    }
    world.Run(800);
    world.Resize(2);
    world.Run(100);
    world.Recover();
    EXPECT_LE(world.file_bytes(), world.capacity_bytes()) << "seed " << seed;
    for (const std::string& complaint : world.complaints()) {
      ADD_FAILURE() << "seed " << seed << ": " << complaint;
    }
    if (HasFailure()) return;
    Add(world.counts(), &sum);
  }
  EXPECT_EQ(sum.lies, 0u);
  EXPECT_GT(sum.shrinks, 60u);
  EXPECT_GT(sum.moved, 60u);
}

}  // namespace
}  // namespace terrace::sim
