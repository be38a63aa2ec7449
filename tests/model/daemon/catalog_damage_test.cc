// A catalog that something has damaged: a start never ends the process, never takes damage for a
// record, and gives the blocks that the tables give. TERRACE_CATALOG_DAMAGES: how many in all.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "sim/disk_domain.h"
#include "sim/fakes.h"

namespace terrace::sim {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kShardCount = 4;  // tests that may run side by side
constexpr uint32_t kBlocks = 120;
constexpr std::chrono::seconds kReadyMax{60};

uint64_t DamageCount() {
  const char* text = std::getenv("TERRACE_CATALOG_DAMAGES");
  return text == nullptr ? 200 : std::strtoull(text, nullptr, 10);
}

// A tier above which nobody stores: what a start gave, block by block.
using Told = std::tuple<BlockKey, CommitId, uint8_t, bool, uint32_t, uint32_t, uint32_t>;

struct Ready {
  std::multiset<Told> blocks;
  bool is_from_catalog = false;
  std::string why;
};

class CatalogDamage : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "terrace-catalog-damage-XXXXXX";
    root_ = mkdtemp(pattern.data());
    LeaveBlocks();
    kept_ = root_ + "/kept";
    kept_word_ = root_ + "/kept.word";
    fs::copy(catalog(), kept_, fs::copy_options::recursive);
    fs::copy(word(), kept_word_);
    for (const auto& file : fs::directory_iterator(kept_)) {
      const std::string name = file.path().filename();
      if (file.is_regular_file() && name != "LOCK" && !name.starts_with("LOG")) {
        names_.push_back(name);
      }
    }
    std::sort(names_.begin(), names_.end());
    whole_ = Start();
    ASSERT_TRUE(whole_.is_from_catalog) << whole_.why;
    ASSERT_EQ(whole_.blocks.size(), kBlocks);
  }
  void TearDown() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  std::string catalog() const { return root_ + "/path0/domain/catalog"; }
  std::string word() const { return root_ + "/path0/domain/catalog.word"; }

  // Some records lie in a table file, some in a log: a catalog closed in order has all in tables,
  // one that was opened and closed again has more of them, and the last word in a log.
  void LeaveBlocks() {
    for (uint32_t life = 0; life < 3; ++life) {
      DiskDomain domain({.root = root_, .seed = life + 1});
      if (life == 0) {
        domain.RestoreFromTables();
      } else {
        ASSERT_TRUE(domain.RestoreFromCatalog());
      }
      for (uint32_t owner = 0; owner < kBlocks / 3; ++owner) {
        const uint32_t key = life * (kBlocks / 3) + owner;
        ASSERT_TRUE(domain.RunUntil([&] { return domain.Store(key); }));
      }
      domain.StopClean();
    }
  }

  // What RestoreDomain does, without a store above.
  Ready Start() {
    Ready ready;
    DiskDomain domain({.root = root_});
    std::vector<std::string> notes;
    EXPECT_TRUE(domain.tier().restore().OpenSlabs(&notes).ok());
    bool is_whole = domain.catalog().Open(&ready.why);
    EXPECT_NE(domain.catalog().db(), nullptr)
        << "no damage is taken for what passes: " << ready.why;
    if (is_whole) {
      const Status status = domain.catalog().db()->ForEachExtent(
          [&](SlotName name, std::span<const std::byte> entry) {
            is_whole = domain.tier()
                           .restore()
                           .RestoreEntry(name.slab, name.slot, entry, domain.Sink())
                           .ok();
            return is_whole;
          });
      is_whole = is_whole && status.ok();
    }
    ready.is_from_catalog = is_whole;
    const Status scanned = is_whole ? Status::Ok() : domain.tier().restore().Scan(domain.Sink());
    EXPECT_TRUE(scanned.ok()) << scanned.what();
    domain.tier().restore().Finish();
    EXPECT_EQ(domain.tier().stats().quarantined_bytes, 0u);
    for (const auto& [owner, block] : domain.blocks()) {
      ready.blocks.insert({block.record.key, block.record.commit_id, block.record.priority,
                           block.record.is_pinned, block.extent.shard, block.extent.position,
                           block.extent.generation});
    }
    return ready;
  }

  // What was done, for the failure message.
  std::string DamageSomething(std::mt19937_64& random) {
    fs::path path;
    do {
      path = fs::path(catalog()) / names_[random() % names_.size()];
    } while (!fs::exists(path));
    const std::string name = path.filename();
    const uint64_t length_bytes = fs::file_size(path);
    const uint64_t choice = random() % 20;
    if (choice == 0) {
      fs::remove(path);
      return "removed " + name;
    }
    if (choice == 1) {
      const uint64_t kept_bytes = length_bytes == 0 ? 0 : random() % length_bytes;
      fs::resize_file(path, kept_bytes);
      return "cut " + name + " to " + std::to_string(kept_bytes);
    }
    if (choice == 2) {
      fs::resize_file(path, length_bytes + 1 + random() % 5000);
      return "added zeros to " + name;
    }
    if (length_bytes == 0) return "left " + name + " as it is";
    const uint64_t at = random() % length_bytes;
    const auto bit = static_cast<uint32_t>(random() % 8);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const char flipped = static_cast<char>(file.get() ^ (1 << bit));
    file.seekp(static_cast<std::streamoff>(at));
    file.put(flipped);
    return "flipped bit " + std::to_string(bit) + " of byte " + std::to_string(at) + " of " + name;
  }

  std::string root_;
  std::string kept_, kept_word_;
  std::vector<std::string> names_;
  Ready whole_;
};

// PROMISE: T12 flips, cuts and losses in the catalog
// PROMISE: T18 flips, cuts and losses in the catalog
TEST_P(CatalogDamage, NoDamageChangesWhatAStartGives) {
  uint64_t from_tables = 0, count = 0;
  std::chrono::steady_clock::duration longest{};
  for (uint64_t seed = 1 + GetParam(); seed <= DamageCount(); seed += kShardCount) {
    std::mt19937_64 random(seed);
    fs::remove_all(catalog());
    fs::remove_all(catalog() + ".old");
    fs::copy(kept_, catalog(), fs::copy_options::recursive);
    fs::copy(kept_word_, word(), fs::copy_options::overwrite_existing);
    // After a kill nobody knows what its files ought to be: RocksDB alone meets the damage.
    const bool is_after_kill = random() % 4 == 0;
    if (is_after_kill) fs::remove(catalog() + "/clean");
    const std::string damage = "seed " + std::to_string(seed) + ": " + DamageSomething(random) +
                               (is_after_kill ? ", after a kill" : "");
    SCOPED_TRACE(damage);
    const auto begin = std::chrono::steady_clock::now();
    const Ready ready = Start();
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_LE(took, kReadyMax);
    ASSERT_TRUE(ready.blocks == whole_.blocks)
        << ready.blocks.size() << " blocks of " << whole_.blocks.size() << " from the "
        << (ready.is_from_catalog ? "catalog" : "tables") << "; " << ready.why;
    from_tables += ready.is_from_catalog ? 0 : 1;
    longest = std::max(longest, took);
    ++count;
  }
  // Some damage is where nobody looks, and does no harm; most of it is seen.
  EXPECT_GT(from_tables, count / 3);
  std::cout << count << " damages, " << from_tables << " starts from the tables, the longest took "
            << std::chrono::duration_cast<std::chrono::milliseconds>(longest).count() << " ms\n";
}

INSTANTIATE_TEST_SUITE_P(Shards, CatalogDamage, testing::Range(uint64_t{0}, kShardCount));

}  // namespace
}  // namespace terrace::sim
