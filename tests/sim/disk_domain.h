// DiskDomain: a domain's drives for real: files in a directory, the NVMe tier over them, a catalog
// beside, and a loop that stands for the store thread. It ends in order or as if killed, and
// another begins on what is left.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "daemon/domain/recovery.h"
#include "daemon/persist/catalog.h"
#include "daemon/persist/group_files.h"
#include "tiers/disk/file_disk.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace::sim {

// Members of 5,000 and 300 bytes: their slots end in the middle of a sector.
inline SpaceGroupSpec DiskGroup(const std::string& name = "disk-group") {
  SpaceSpec spec;
  spec.model = name;
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = 4;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.part_bytes = {5000, 300};
  return {.name = name, .members = {{.spec = spec}}};
}

class DiskDomain final : public TierListener {
 public:
  struct Options {
    std::string root;  // of all paths; exists
    uint32_t path_count = 1;
    uint64_t slab_bytes = 512 * kKiB;
    uint64_t capacity_bytes = 4 * kMiB;
    uint64_t seed = 1;
    uint8_t secret_begin = 3;
    rocksdb::Env* catalog_env = nullptr;  // none: the operating system's
  };
  struct Block {
    BlockRecord record;  // without checksums
    Extent extent;
    std::vector<Checksum> checksums;
    bool is_written = false;
    bool is_persisted = false;
  };

  explicit DiskDomain(Options options) : options_(std::move(options)), random_(options_.seed) {
    for (size_t i = 0; i < secret_.size(); ++i) {
      secret_[i] = static_cast<std::byte>(i * 5 + options_.secret_begin);
    }
    for (const std::string& path : paths()) std::filesystem::create_directory(path);
    catalog_ = std::make_unique<Catalog>(Catalog::Options{.db = {.directory = catalog_directory(),
                                                                 .slab_directories = directories(),
                                                                 .memory_bytes = 8 * kMiB,
                                                                 .env = options_.catalog_env},
                                                          .gather_us = 200});
    NvmeTier::Options tier{.domain_name = "domain",
                           .secret = secret_,
                           .capacity_bytes = options_.capacity_bytes,
                           .slab_bytes = options_.slab_bytes,
                           .catalog = catalog_.get(),
                           .now_us = [] { return NowUs(); },
                           .random = [this] { return random_(); },
                           .sync_interval_us = 10'000};
    for (const std::string& directory : directories()) {
      std::string why;
      DiskOptions disk{.directory = directory,
                       .post = [loop = loop_](std::function<void()> call) { loop->Post(call); },
                       .engine = DiskEngineChoice::kThreads,
                       .threads = 1};
      Result<std::unique_ptr<Disk>> opened = OpenDisk(std::move(disk), &why);
      TERRACE_CHECK(opened.ok(), why.c_str());
      disks_.push_back(std::move(*opened));
      tier.disks.push_back(disks_.back().get());
    }
    tier_ = std::make_unique<NvmeTier>(std::move(tier));
    tier_->SetListener(this);
  }
  ~DiskDomain() override {
    catalog_.reset();  // its thread reads through the tier
    tier_.reset();
    disks_.clear();  // their threads read the buffers of transfers
  }

  NvmeTier& tier() { return *tier_; }
  Catalog& catalog() { return *catalog_; }
  const DomainSecret& secret() const { return secret_; }
  std::map<uint64_t, Block>& blocks() { return blocks_; }  // by owner
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (uint32_t i = 0; i < options_.path_count; ++i) {
      paths.push_back(options_.root + "/path" + std::to_string(i));
    }
    return paths;
  }
  std::vector<std::string> directories() const {
    std::vector<std::string> directories = paths();
    for (std::string& directory : directories) directory += "/domain";
    return directories;
  }
  std::string catalog_directory() const { return directories()[0] + "/catalog"; }
  std::string groups_directory() const { return directories()[0] + "/groups"; }

  // Adopts every block it is shown, under the owner that its key was made from.
  SlabRestore::Sink Sink() {
    return [this](const BlockRecord& record, const Extent& extent) {
      const auto owner = static_cast<uint32_t>(record.key.low);
      Block& block = blocks_[owner];
      block = {.record = record,
               .extent = extent,
               .checksums = {record.part_checksums.begin(), record.part_checksums.end()},
               .is_written = true,
               .is_persisted = true};
      block.record.part_checksums = {};
      return owner;
    };
  }
  // As after a start without a store: from the tables, whatever the catalog says.
  void RestoreFromTables() {
    std::vector<std::string> notes;
    std::string why;
    ASSERT_TRUE(tier_->restore().OpenSlabs(&notes).ok());
    catalog_->Open(&why);
    ASSERT_TRUE(tier_->restore().Scan(Sink()).ok());
    tier_->restore().Finish();
    std::vector<Catalog::SlabSlots> slabs;
    for (uint32_t slab = 0; slab < 16; ++slab) slabs.push_back({.slab = slab, .slot_count = 4096});
    catalog_->Rewrite(slabs);
    StartCatalog();
  }
  // False if the catalog is not believed.
  bool RestoreFromCatalog() {
    std::vector<std::string> notes;
    std::string why;
    EXPECT_TRUE(tier_->restore().OpenSlabs(&notes).ok());
    if (!catalog_->Open(&why)) return false;
    const Status status =
        catalog_->db()->ForEachExtent([&](SlotName name, std::span<const std::byte> entry) {
          EXPECT_TRUE(tier_->restore().RestoreEntry(name.slab, name.slot, entry, Sink()).ok());
          return true;
        });
    EXPECT_TRUE(status.ok());
    tier_->restore().Finish();
    StartCatalog();
    return true;
  }
  void StartCatalog() {
    catalog_->Start({.read_entry =
                         [this](uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) {
                           return tier_->ReadEntryNow(slab, slot, entry);
                         },
                     .has_answers = [this, loop = loop_] { loop->Post([this] { TakeAnswers(); }); },
                     .trouble =
                         [](const std::string& sentence) {
                           const bool is_told_aside =
                               sentence.find("; it is now ") != sentence.npos;
                           EXPECT_TRUE(is_told_aside) << sentence;
                         }});
  }

  // ---- what a store would do ----
  // False: no room just now.
  bool Store(uint32_t owner) {
    const SpaceGroupSpec group = DiskGroup();
    const SpaceSpec& spec = group.members[0].spec;
    const Result<Extent> extent = tier_->Allocate(0, spec.slot_bytes(), 2);
    if (!extent.ok()) return false;
    Block block{.extent = *extent};
    block.record.group = group.Id();
    block.record.space = spec.Id();
    block.record.key = {.low = owner, .high = 7};
    block.record.commit_id = random_();
    block.record.position = owner;
    block.record.priority = 50;
    block.record.owner = owner;
    Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(4096, spec.slot_bytes())));
    const std::span<std::byte> bytes(buffer.get(), spec.slot_bytes());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    for (uint32_t part = 0; part < 2; ++part) {
      block.checksums.push_back(
          ChecksumPart(bytes.subspan(spec.part_offset_bytes(part), spec.part_bytes[part]),
                       ChecksumSeed(secret_, {.space = spec.Id(),
                                              .key = block.record.key,
                                              .commit_id = block.record.commit_id,
                                              .part_index = part})));
    }
    BlockRecord record = block.record;
    record.part_checksums = block.checksums;
    const TransferId transfer = ++last_transfer_;
    if (!tier_->Write(transfer, *extent, record, bytes).ok()) {
      tier_->Free(*extent);
      return false;
    }
    blocks_[owner] = std::move(block);
    transfers_[transfer] = {owner, std::move(buffer)};
    return true;
  }
  // REQUIRES: the block is written.
  void Free(uint32_t owner) {
    tier_->Free(blocks_.at(owner).extent);
    blocks_.erase(owner);
  }
  void Quarantine(uint32_t owner) {
    tier_->Quarantine(blocks_.at(owner).extent);
    blocks_.erase(owner);
  }
  void Amend(uint32_t owner, uint8_t priority) {
    Block& block = blocks_.at(owner);
    block.record.priority = priority;
    block.record.is_pinned = priority % 2 == 0;
    BlockRecord record = block.record;
    record.part_checksums = block.checksums;
    tier_->Amend(block.extent, record);
  }

  // Turns of the loop until `is_over`; false after half a minute without.
  bool RunUntil(const std::function<bool()>& is_over) {
    const uint64_t end_us = NowUs() + 30'000'000;
    while (!is_over()) {
      if (NowUs() > end_us) return false;
      Turn();
    }
    return true;
  }
  void Turn() {
    loop_->RunSome();
    tier_->Tick();
    for (const auto& disk : disks_) disk->Flush();
  }
  // All that was asked for is on its way no more.
  void Settle() {
    int quiet_turns = 0;
    EXPECT_TRUE(RunUntil([&] {
      uint64_t in_flight = catalog_->stats().slots_waiting + transfers_.size();
      for (const auto& disk : disks_) in_flight += disk->stats().requests_in_flight;
      quiet_turns = in_flight == 0 && !tier_->has_erasures_pending() ? quiet_turns + 1 : 0;
      return quiet_turns > 20;
    }));
  }
  void StopClean() {
    Settle();
    const Status status = catalog_->StopClean(30'000'000);
    EXPECT_TRUE(status.ok()) << status.what();
  }

 private:
  struct FreeBytes {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Buffer = std::unique_ptr<std::byte, FreeBytes>;
  struct Transfer {
    uint32_t owner = 0;
    Buffer buffer;
  };
  class Loop {
   public:
    void Post(std::function<void()> call) {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
      changed_.notify_one();
    }
    void RunSome() {
      std::deque<std::function<void()>> calls;
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return !calls_.empty(); });
        calls.swap(calls_);
      }
      for (const auto& call : calls) call();
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> calls_;
  };

  static uint64_t NowUs() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  }
  void TakeAnswers() {
    std::vector<SlotName> slots;
    while (catalog_->TakeAnswers(&slots)) continue;
    for (const SlotName name : slots) tier_->OnCataloged(name.slab, name.slot);
  }
  void OnTransferDone(TransferId transfer_id, Status status) override {
    const uint32_t owner = transfers_.at(transfer_id).owner;
    transfers_.erase(transfer_id);
    EXPECT_TRUE(status.ok()) << status.what();
    blocks_.at(owner).is_written = true;
  }
  void OnPersisted(uint32_t, uint32_t owner, CommitId commit_id, uint32_t) override {
    const auto found = blocks_.find(owner);
    if (found != blocks_.end() && found->second.record.commit_id == commit_id) {
      found->second.is_persisted = true;
    }
  }

  void OnRecordInDoubt(uint32_t, uint32_t owner) override {
    Amend(owner, blocks_.at(owner).record.priority);
  }
  void OnRoom(uint32_t) override {}

  const Options options_;
  DomainSecret secret_;
  std::mt19937_64 random_;
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();
  std::vector<std::unique_ptr<Disk>> disks_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<NvmeTier> tier_;
  std::map<uint64_t, Block> blocks_;
  std::map<TransferId, Transfer> transfers_;
  TransferId last_transfer_ = 0;
};

}  // namespace terrace::sim
