// The catalog against the tables: after any history both give a successor the same blocks.
// TERRACE_SIM_SEEDS: how many histories in all.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "sim/disk_domain.h"

namespace terrace::sim {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kShardCount = 10;  // tests that may run side by side

uint64_t SeedCount() {
  const char* text = std::getenv("TERRACE_SIM_SEEDS");
  return text == nullptr ? 100 : std::strtoull(text, nullptr, 10);
}

// Everything about a block that a successor goes by.
using Told = std::tuple<BlockKey, GroupId, SpaceId, CommitId, uint64_t, uint32_t, uint8_t, bool,
                        uint32_t, uint64_t, uint32_t, std::vector<Checksum>>;
std::set<Told> Tell(const std::map<uint64_t, DiskDomain::Block>& blocks) {
  std::set<Told> told;
  for (const auto& [owner, block] : blocks) {
    const BlockRecord& r = block.record;
    told.insert({r.key, r.group, r.space, r.commit_id, r.epoch, r.position, r.priority, r.is_pinned,
                 block.extent.shard, block.extent.position, block.extent.generation,
                 block.checksums});
  }
  return told;
}

// The writer does not know the order numbers the tier gives.
std::set<Told> TellWithoutEpochs(std::map<uint64_t, DiskDomain::Block> blocks) {
  for (auto& [owner, block] : blocks) block.record.epoch = 0;
  return Tell(blocks);
}

class CatalogModel : public testing::TestWithParam<uint64_t> {
 protected:
  CatalogModel() {
    std::string pattern = fs::temp_directory_path() / "terrace-catalog-model-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~CatalogModel() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  // Writes, frees, amends and gives up blocks at random.
  void Live(DiskDomain& domain, uint64_t steps, std::mt19937_64& random) {
    for (uint64_t step = 0; step < steps; ++step) {
      const auto owner = static_cast<uint32_t>(random() % 150);
      const auto found = domain.blocks().find(owner);
      const bool is_written = found != domain.blocks().end() && found->second.is_written;
      if (found == domain.blocks().end()) {
        domain.Store(owner);
      } else if (is_written) {
        const uint64_t choice = random() % 20;
        if (choice == 0) {
          domain.Quarantine(owner);
        } else if (choice < 10) {
          domain.Free(owner);
        } else {
          domain.Amend(owner, static_cast<uint8_t>(random() % 100));
        }
      }
      if (random() % 8 == 0) domain.Turn();
    }
  }

  uint64_t CompareAfter(uint64_t seed);

  std::string root_;
};

// One history: a life that is killed, and one that ends in order. How many blocks it left.
uint64_t CatalogModel::CompareAfter(uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::string root = root_ + "/" + std::to_string(seed);
  const std::string copy = root + "-copy";
  fs::create_directory(root);
  const auto path_count = static_cast<uint32_t>(1 + seed % 2);
  {
    DiskDomain domain({.root = root, .path_count = path_count, .seed = seed});
    domain.RestoreFromTables();
    Live(domain, 400, random);
  }  // what was on its way may or may not have arrived
  std::set<Told> known;
  {
    DiskDomain domain({.root = root, .path_count = path_count, .seed = seed + 1000});
    domain.RestoreFromTables();  // its catalog is written anew behind what goes on
    Live(domain, 400, random);
    domain.StopClean();
    known = TellWithoutEpochs(domain.blocks());
  }
  fs::copy(root, copy, fs::copy_options::recursive);
  DiskDomain by_tables({.root = copy, .path_count = path_count});
  by_tables.RestoreFromTables();
  DiskDomain by_catalog({.root = root, .path_count = path_count});
  EXPECT_TRUE(by_catalog.RestoreFromCatalog());
  EXPECT_EQ(Tell(by_catalog.blocks()), Tell(by_tables.blocks()));
  EXPECT_EQ(by_catalog.tier().stats().quarantined_bytes,
            by_tables.tier().stats().quarantined_bytes);
  EXPECT_EQ(TellWithoutEpochs(by_tables.blocks()), known);
  return known.size();
}

// PROMISE: T19 tables against catalog
TEST_P(CatalogModel, TablesAndCatalogGiveTheSameBlocks) {
  uint64_t blocks_compared = 0, seeds = 0;
  for (uint64_t seed = 1 + GetParam(); seed <= SeedCount(); seed += kShardCount) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    blocks_compared += CompareAfter(seed);
    ++seeds;
    ASSERT_FALSE(HasFailure());
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry, error);
  }
  EXPECT_GE(blocks_compared, 10 * seeds);
}

INSTANTIATE_TEST_SUITE_P(Shards, CatalogModel, testing::Range(uint64_t{0}, kShardCount));

}  // namespace
}  // namespace terrace::sim
