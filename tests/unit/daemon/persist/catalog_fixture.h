// What tests of the catalog share: tables that a test writes, and a catalog beside them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "daemon/persist/catalog.h"
#include "tiers/nvme/header_table.h"
#include "unit/include/example_space.h"

namespace terrace {

class CatalogDirectory {
 public:
  CatalogDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "terrace-catalog-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~CatalogDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// What the header tables say, for a catalog to read back.
class CatalogTables {
 public:
  using Entry = std::vector<std::byte>;

  void Write(SlotName name, SlabEntryState state, uint64_t commit_id) {
    SlabEntry entry;
    entry.state = state;
    entry.slot = name.slot;
    entry.length_bytes = 4096;
    entry.commit_id = commit_id;
    entry.part_checksums = {Checksum{.low = commit_id, .high = 1}};
    const std::lock_guard lock(mutex_);
    Entry& bytes = entries_[name];
    bytes.resize(geometry_.entry_bytes);
    EncodeEntry(geometry_, SlabUuid{.low = name.slab}, entry, secret_, bytes);
  }
  Status Read(SlotName name, Entry* entry) const {
    const std::lock_guard lock(mutex_);
    ++reads_;
    const auto found = entries_.find(name);
    if (found == entries_.end()) return Status(StatusCode::kNotFound, "never written");
    if (unreadable_.contains(name)) return Status(StatusCode::kIo, "planted", EIO);
    *entry = found->second;
    return Status::Ok();
  }
  void MakeUnreadable(SlotName name) { unreadable_.insert(name); }
  // What a catalog ought to hold.
  std::map<SlotName, Entry> NotFree() const {
    const std::lock_guard lock(mutex_);
    std::map<SlotName, Entry> kept;
    for (const auto& [name, entry] : entries_) {
      if (ClaimedState(entry) != SlabEntryState::kFree) kept[name] = entry;
    }
    return kept;
  }
  uint64_t reads() const { return reads_; }

 private:
  const SlabGeometry geometry_ =
      SlabGeometry::Of({.slot_bytes = 4096, .part_count = 1}, 256 * kMiB).value();
  const DomainSecret secret_ = ExampleSecret();
  mutable std::mutex mutex_;
  mutable uint64_t reads_ = 0;
  std::map<SlotName, Entry> entries_;
  std::set<SlotName> unreadable_;
};

class CatalogTest : public testing::Test {
 protected:
  static constexpr uint64_t kWaitUs = 20'000'000;

  Catalog::Options OptionsOf() const {
    return {.db = {.directory = directory_ / "catalog", .memory_bytes = 8 * kMiB},
            .gather_us = 100,
            .reopen_attempts_max = 1,
            .reopen_interval_us = 1'000};
  }
  Catalog::Links LinksOf() {
    return {.read_entry =
                [this](uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) {
                  return tables_.Read({slab, slot}, entry);
                },
            .has_answers =
                [this] {
                  const std::lock_guard lock(mutex_);
                  is_posted_ = true;
                  changed_.notify_all();
                },
            .trouble =
                [this](const std::string& sentence) {
                  const std::lock_guard lock(mutex_);
                  troubles_.push_back(sentence);
                }};
  }
  // As the store thread does what is posted to it.
  void WaitUntilCataloged(Catalog& catalog, const std::set<SlotName>& names) {
    std::unique_lock lock(mutex_);
    while (!std::includes(cataloged_.begin(), cataloged_.end(), names.begin(), names.end())) {
      ASSERT_TRUE(changed_.wait_for(lock, std::chrono::microseconds(kWaitUs),
                                    [this] { return is_posted_; }));
      is_posted_ = false;
      lock.unlock();
      std::vector<SlotName> answers;
      while (catalog.TakeAnswers(&answers)) continue;
      lock.lock();
      cataloged_.insert(answers.begin(), answers.end());
    }
  }
  // Writes `count` entries of slab `slab`, and names them to the catalog.
  std::set<SlotName> Fill(Catalog& catalog, uint32_t slab, uint32_t count) {
    std::set<SlotName> names;
    for (uint32_t slot = 0; slot < count; ++slot) {
      tables_.Write({slab, slot}, SlabEntryState::kUsed, slot + 1);
      catalog.OnEntryWritten(slab, slot);
      names.insert({slab, slot});
    }
    return names;
  }
  static std::map<SlotName, CatalogTables::Entry> Extents(const Catalog& catalog) {
    std::map<SlotName, CatalogTables::Entry> extents;
    const Status status =
        catalog.db()->ForEachExtent([&](SlotName name, std::span<const std::byte> entry) {
          extents[name] = {entry.begin(), entry.end()};
          return true;
        });
    EXPECT_TRUE(status.ok()) << status.what();
    return extents;
  }
  // A catalog of `count` extents that was closed in order.
  void MakeClean(uint32_t count) {
    Catalog catalog(OptionsOf());
    std::string why;
    catalog.Open(&why);
    catalog.Start(LinksOf());
    catalog.Rewrite({});
    Fill(catalog, 0, count);
    ASSERT_TRUE(catalog.StopClean(kWaitUs).ok());
  }
  std::vector<std::filesystem::path> Files(const std::string& kind) const {
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(directory_ / "catalog")) {
      const std::string name = file.path().filename();
      if (name.starts_with(kind) || name.ends_with(kind)) files.push_back(file.path());
    }
    return files;
  }

  CatalogDirectory directory_;
  CatalogTables tables_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_posted_ = false;
  std::set<SlotName> cataloged_;
  std::vector<std::string> troubles_;
};

}  // namespace terrace
