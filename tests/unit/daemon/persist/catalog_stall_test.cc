// A catalog whose database does not come back from a write.
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "sim/disk_domain.h"

namespace terrace {
namespace {

using sim::DiskDomain;

// Appends wait while it is shut.
class Gate {
 public:
  void Shut() {
    const std::lock_guard lock(mutex_);
    is_shut_ = true;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    is_shut_ = false;
    opened_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    waiting_ += is_shut_ ? 1 : 0;
    opened_.wait(lock, [this] { return !is_shut_; });
  }
  // How many came to it while it was shut.
  uint32_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  bool is_shut_ = false;
  uint32_t waiting_ = 0;
};

class GatedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  GatedFile(Gate* gate, std::unique_ptr<rocksdb::FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)), gate_(gate) {}
  rocksdb::IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* context) override {
    gate_->Pass();
    return target()->Append(bytes, options, context);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo& verification,
                           rocksdb::IODebugContext* context) override {
    gate_->Pass();
    return target()->Append(bytes, options, verification, context);
  }

 private:
  Gate* gate_;
};

class GatedFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit GatedFileSystem(Gate* gate)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), gate_(gate) {}
  const char* Name() const override { return "GatedFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override {
    const rocksdb::IOStatus status = target()->NewWritableFile(name, options, file, context);
    if (status.ok()) *file = std::make_unique<GatedFile>(gate_, std::move(*file));
    return status;
  }

 private:
  Gate* gate_;
};

// PROMISE: T15 a database that stands
TEST(CatalogStall, BlocksArePublishedWhileTheDatabaseStandsAndPersistedAfter) {
  std::string root = std::filesystem::temp_directory_path() / "terrace-stall-XXXXXX";
  root = mkdtemp(root.data());
  Gate gate;
  const std::unique_ptr<rocksdb::Env> env =
      rocksdb::NewCompositeEnv(std::make_shared<GatedFileSystem>(&gate));
  {
    DiskDomain domain({.root = root, .catalog_env = env.get()});
    domain.RestoreFromTables();
    domain.Settle();
    gate.Shut();
    const auto count = [&](bool DiskDomain::Block::*is_done) {
      return std::ranges::count_if(domain.blocks(),
                                   [&](const auto& each) { return each.second.*is_done; });
    };
    constexpr uint32_t kBlocks = 40;
    for (uint32_t owner = 0; owner < kBlocks; ++owner) {
      ASSERT_TRUE(domain.RunUntil([&] { return domain.Store(owner); }));
    }
    ASSERT_TRUE(domain.RunUntil(
        [&] { return count(&DiskDomain::Block::is_written) == kBlocks && gate.waiting() > 0; }));
    // Slots are reused as well: what is freed and stored again only waits to be looked at.
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t owner = 0; owner < kBlocks; ++owner) {
        domain.Free(owner);
        ASSERT_TRUE(domain.RunUntil([&] { return domain.Store(owner); }));
      }
      ASSERT_TRUE(
          domain.RunUntil([&] { return count(&DiskDomain::Block::is_written) == kBlocks; }));
    }
    EXPECT_EQ(count(&DiskDomain::Block::is_persisted), 0);
    EXPECT_LE(domain.catalog().stats().slots_waiting, 200u);
    gate.Open();
    EXPECT_TRUE(
        domain.RunUntil([&] { return count(&DiskDomain::Block::is_persisted) == kBlocks; }));
    domain.StopClean();
  }
  std::error_code error;
  std::filesystem::remove_all(root, error);
}

}  // namespace
}  // namespace terrace
