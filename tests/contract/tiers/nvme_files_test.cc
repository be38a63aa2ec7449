// NvmeTier over files of a real file system, by both engines: drives that fail now and then,
// requests that never end, full file systems, and people who remove what they should not.
// What is lost is a miss; the tier goes on or switches itself off, and comes back by itself.
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "contract/tiers/disk_rig.h"
#include "sim/nvme_rig.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {
namespace {

constexpr uint64_t kSlabBytes = kMiB;
constexpr uint64_t kBlockBytes = 64 * kKiB;
constexpr uint64_t kSlabCount = 4;
constexpr uint64_t kStuckUs = 30'000'000;

// A tier in a directory of its own, somebody who keeps blocks in it, and time that passes when the
// test says so.
class NvmeFiles : public testing::TestWithParam<DiskEngineChoice>, public TierListener {
 protected:
  ~NvmeFiles() override { Close(); }

  void Open(const std::string& directory, DiskResultFilter filter = {}) {
    Close();
    blocks_.clear();
    std::string why;
    auto disk = OpenDisk({.directory = directory,
                          .post = loop_.post(),
                          .engine = GetParam(),
                          .stop_us = 300'000,
                          .result_filter = std::move(filter)},
                         &why);
    ASSERT_TRUE(disk.ok()) << why;
    disk_ = std::move(*disk);
    tier_ = std::make_unique<NvmeTier>(NvmeTier::Options{.domain_name = "files",
                                                         .secret = sim::SecretFrom(1),
                                                         .disks = {disk_.get()},
                                                         .capacity_bytes = kSlabCount * kSlabBytes,
                                                         .slab_bytes = kSlabBytes,
                                                         .now_us = [this] { return now_us_; },
                                                         .random = [this] { return random_(); },
                                                         .stuck_us = kStuckUs});
    tier_->SetListener(this);
    std::vector<std::string> notes;
    ASSERT_TRUE(tier_->restore().OpenSlabs(&notes).ok());
    ASSERT_TRUE(tier_->restore()
                    .Scan([this](const BlockRecord& record, const Extent& extent) {
                      blocks_[record.key.low] = {.extent = extent, .is_persisted = true};
                      return static_cast<uint32_t>(record.key.low);
                    })
                    .ok());
    tier_->restore().Finish();
  }
  void Close() {
    tier_.reset();
    disk_.reset();
  }
  std::string directory() const { return scratch_.path() + "/domain"; }

  void OnTransferDone(TransferId transfer_id, Status status) override {
    done_[transfer_id] = status;
  }
  void OnPersisted(uint32_t, uint32_t owner, CommitId, uint32_t) override {
    if (blocks_.contains(owner)) blocks_[owner].is_persisted = true;
  }
  void OnRoom(uint32_t) override {}

  // Nothing but what is stuck is under way.
  void Drain(uint64_t stuck_count = 0) {
    disk_->Flush();
    ASSERT_TRUE(loop_.RunUntil([&] { return disk_->stats().requests_in_flight <= stuck_count; }));
  }
  void Pass(uint64_t seconds, uint64_t stuck_count = 0) {
    for (uint64_t second = 0; second < seconds; ++second) {
      now_us_ += 1'000'000;
      tier_->Tick();
      Drain(stuck_count);
    }
  }

  Status Await(TransferId id) {
    disk_->Flush();
    EXPECT_TRUE(loop_.RunUntil([&] { return done_.contains(id); }));
    return done_[id];
  }
  Result<Extent> Allocate() {
    for (int round = 0; round < 40; ++round) {
      const Result<Extent> extent = tier_->Allocate(0, kBlockBytes, 1);
      if (extent.ok() || extent.code() != StatusCode::kBusy) return extent;
      Pass(1);
    }
    return Status(StatusCode::kBusy);
  }
  Status Store(uint64_t key) {
    const Result<Extent> extent = Allocate();
    TERRACE_RETURN_IF_ERROR(extent.status());
    const std::span<std::byte> memory = memory_.bytes();
    FillPattern(memory, key);
    BlockRecord record;
    record.commit_id = key;
    record.owner = static_cast<uint32_t>(key);
    record.part_checksums = checksum_;
    record.key = {key, ~key};
    const TransferId id = ++transfer_;
    Status status = tier_->Write(id, *extent, record, memory);
    if (status.ok()) {
      blocks_[key] = {.extent = *extent};
      status = Await(id);
    }
    if (!status.ok()) {
      tier_->Free(*extent);
      blocks_.erase(key);
    }
    return status;
  }
  // kCorrupt: other bytes than were stored, which a store's checksum would tell.
  Status Load(uint64_t key) {
    FillPattern(memory_.bytes(), ~key);
    const TransferId id = ++transfer_;
    TERRACE_RETURN_IF_ERROR(tier_->Read(id, blocks_.at(key).extent, memory_.bytes()));
    TERRACE_RETURN_IF_ERROR(Await(id));
    return HasPattern(memory_.bytes(), key) ? Status::Ok() : Status(StatusCode::kCorrupt);
  }
  // As a store does with a copy that does not read.
  void Forget(uint64_t key) {
    tier_->Free(blocks_.at(key).extent);
    blocks_.erase(key);
  }
  std::string SlabPath(uint32_t index) const {
    return directory() + "/slab-" + std::to_string(index) + ".terrace";
  }
  void ExpectServes(uint64_t first_key) {
    for (uint64_t key = first_key; key < first_key + 10; ++key) {
      const Status stored = Store(key);
      ASSERT_TRUE(stored.ok()) << stored.what() << " " << stored.detail();
    }
    Pass(3);
    for (uint64_t key = first_key; key < first_key + 10; ++key) {
      EXPECT_TRUE(Load(key).ok());
      EXPECT_TRUE(blocks_[key].is_persisted);
    }
    EXPECT_TRUE(tier_->stats().is_healthy);
  }

  struct Block {
    Extent extent;
    bool is_persisted = false;
  };
  ScratchDirectory scratch_{testing::TempDir()};
  StoreLoop loop_;
  SharedMemory memory_{kBlockBytes};
  std::mt19937_64 random_{1};
  uint64_t now_us_ = 1'000'000;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<NvmeTier> tier_;
  std::map<uint64_t, Block> blocks_;  // by key
  std::map<TransferId, Status> done_;
  std::array<Checksum, 1> checksum_ = {Checksum{1, 2}};
  TransferId transfer_ = 0;
};

// ---- attempts that fail ---------------------------------------------------------------------

// PROMISE: T16 the tier
TEST_P(NvmeFiles, ShortRefusedAndInterruptedAttemptsAreNotNoticed) {
  std::atomic<uint32_t> attempts = 0;
  Open(directory(), [&](DiskOp op, int64_t result) -> int64_t {
    if (op == DiskOp::kCreate || op == DiskOp::kSync || result <= 0) return result;
    const uint32_t attempt = attempts++;
    return attempt % 4 == 0   ? -EAGAIN
           : attempt % 4 == 1 ? -EINTR
           : attempt % 4 == 2 ? result / 2
                              : result;
  });
  ExpectServes(1);
  EXPECT_EQ(tier_->stats().failed_transfers, 0u);
  EXPECT_GT(disk_->stats().retries, 20u);
}

// PROMISE: T14 every request fails
TEST_P(NvmeFiles, EveryErrorIsAMissAndTheTierComesBack) {
  for (const int error : {EIO, ENOSPC, EROFS, ENXIO}) {
    SCOPED_TRACE(error);
    std::atomic<bool> fails = false;
    Open(directory(), [&](DiskOp, int64_t result) -> int64_t { return fails ? -error : result; });
    ASSERT_TRUE(Store(1000).ok());
    Pass(3);
    fails = true;
    for (int i = 0; i < 20; ++i) {
      const Status loaded = Load(1000);
      EXPECT_TRUE(loaded.code() == StatusCode::kIo || loaded.code() == StatusCode::kUnsupported);
      EXPECT_FALSE(Store(2000).ok());
    }
    // A file system that is full is no drive that fails.
    EXPECT_EQ(tier_->stats().is_healthy, error == ENOSPC);
    Pass(12);
    fails = false;
    Pass(12);
    EXPECT_TRUE(tier_->stats().is_healthy);
    EXPECT_TRUE(Load(1000).ok());
    ExpectServes(1);
    for (uint64_t key = 1; key <= 10; ++key) Forget(key);
    Forget(1000);
    Pass(3);
    Close();
  }
}

// PROMISE: T14 some requests fail
TEST_P(NvmeFiles, WhatFailsNowAndThenLosesNothingThatWasPersisted) {
  std::atomic<uint64_t> state = 1;
  std::atomic<bool> fails = true;
  const auto filter = [&](DiskOp op, int64_t result) -> int64_t {
    if (!fails || result < 0) return result;
    const uint64_t dice = (state += 0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93 >> 40;
    if (dice % 100 < 15) return -EIO;
    if (dice % 100 < 20 && op != DiskOp::kSync) return -EAGAIN;
    if (dice % 100 < 25 && op != DiskOp::kSync && op != DiskOp::kCreate) return result / 2;
    return result;
  };
  Open(directory(), filter);
  uint64_t stored_count = 0, missed_count = 0;
  for (uint64_t key = 1; key <= 300; ++key) {
    if (blocks_.size() > 40) Forget(blocks_.begin()->first);
    stored_count += Store(key).ok();
    if (key % 7 == 0) Pass(1);
    if (blocks_.empty()) continue;
    const uint64_t other =
        std::next(blocks_.begin(), static_cast<long>(key % blocks_.size()))->first;
    const Status loaded = Load(other);
    EXPECT_NE(loaded.code(), StatusCode::kCorrupt) << other;
    missed_count += !loaded.ok();
    if (loaded.code() == StatusCode::kIo) Forget(other);
  }
  EXPECT_GT(stored_count, 30u);
  EXPECT_GT(missed_count, 0u) << "nothing failed: no test";
  fails = false;
  Pass(15);
  for (auto at = blocks_.begin(); at != blocks_.end();) {  // what a failed sync cost
    const uint64_t key = at++->first;
    if (!Load(key).ok()) Forget(key);
  }
  Pass(5);
  const std::map<uint64_t, Block> before = blocks_;
  Open(directory());
  EXPECT_GT(before.size(), 5u);
  for (const auto& [key, block] : before) {
    EXPECT_TRUE(block.is_persisted);
    ASSERT_TRUE(blocks_.contains(key)) << key;
    EXPECT_TRUE(Load(key).ok()) << key;
  }
  EXPECT_EQ(blocks_.size(), before.size()) << "what was freed came back";
}

// PROMISE: T15 a request that never ends
TEST_P(NvmeFiles, RequestThatNeverEndsCostsItsSlotAndNotTheTier) {
  // Outlives the disk: the thread that is stuck looks at it.
  static std::atomic<bool> is_stuck;
  static std::atomic<uint32_t> stuck_count;
  is_stuck = false;
  stuck_count = 0;
  Open(directory(), [](DiskOp op, int64_t result) -> int64_t {
    if (op != DiskOp::kWriteTable || !is_stuck) return result;
    ++stuck_count;
    while (is_stuck) ::usleep(1000);
    --stuck_count;
    return result;
  });
  ASSERT_TRUE(Store(1).ok());
  Pass(2);
  is_stuck = true;
  ASSERT_TRUE(Store(2).ok());  // its entry hangs
  while (stuck_count == 0) ::usleep(1000);
  now_us_ += kStuckUs + 1;
  tier_->Tick();
  EXPECT_FALSE(tier_->stats().is_healthy);
  EXPECT_EQ(tier_->stats().stuck_transfers, 1u);
  EXPECT_EQ(Load(1).code(), StatusCode::kUnsupported);
  EXPECT_EQ(tier_->Allocate(0, kBlockBytes, 1).code(), StatusCode::kUnsupported);
  is_stuck = false;
  while (stuck_count > 0) ::usleep(1000);
  Pass(12);
  EXPECT_TRUE(blocks_[2].is_persisted) << "it ended after all";
  ExpectServes(10);
}

// ---- files that somebody touches ------------------------------------------------------------

TEST_P(NvmeFiles, RemovedSlabIsGivenUpAndReplaced) {
  Open(directory());
  for (uint64_t key = 1; key <= 5; ++key) ASSERT_TRUE(Store(key).ok());
  Pass(3);
  ASSERT_EQ(::unlink(SlabPath(0).c_str()), 0);
  ASSERT_TRUE(Store(6).ok());  // the file still takes bytes; a sync tells that nobody finds them
  Pass(4);
  for (uint64_t key = 1; key <= 6; ++key) EXPECT_EQ(Load(key).code(), StatusCode::kIo);
  ExpectServes(10);
  for (uint64_t key = 1; key <= 6; ++key) Forget(key);
  Pass(3);
  EXPECT_EQ(tier_->stats().quarantined_bytes, 0u) << "the slab that was removed is forgotten";
  uint64_t key = 100;
  while (Store(key).ok()) ++key;
  EXPECT_EQ(blocks_.size(), kSlabCount * 15) << "its share of the cap is used again";
  const std::map<uint64_t, Block> before = blocks_;
  Pass(3);
  Open(directory());
  EXPECT_EQ(blocks_.size(), before.size());
}

TEST_P(NvmeFiles, ShortenedSlabIsAMissAndIsReplaced) {
  Open(directory());
  for (uint64_t key = 1; key <= 12; ++key) ASSERT_TRUE(Store(key).ok());
  Pass(3);
  ASSERT_EQ(::truncate(SlabPath(0).c_str(), 8192), 0);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t key = 1; key <= 12; ++key) EXPECT_FALSE(Load(key).ok());
    Pass(6);
  }
  EXPECT_TRUE(tier_->stats().is_healthy) << "a probe found the file out, the next one another";
  ExpectServes(20);
  for (uint64_t key = 1; key <= 12; ++key) Forget(key);
  Pass(3);
  EXPECT_NE(::access(SlabPath(0).c_str(), F_OK), 0);
}

TEST_P(NvmeFiles, RemovedDirectoryIsMadeAgain) {
  Open(directory());
  for (uint64_t key = 1; key <= 5; ++key) ASSERT_TRUE(Store(key).ok());
  Pass(3);
  std::filesystem::remove_all(directory());
  ASSERT_TRUE(Store(6).ok());
  Pass(15);
  for (uint64_t key = 1; key <= 6; ++key) {
    EXPECT_FALSE(Load(key).ok());
    Forget(key);
  }
  ExpectServes(10);
  std::string why;
  EXPECT_EQ(OpenDisk({.directory = directory(), .post = loop_.post()}, &why).code(),
            StatusCode::kBusy)
      << "the new directory is locked like the old one";
  Open(directory());
  EXPECT_EQ(blocks_.size(), 10u);
  for (uint64_t key = 10; key < 20; ++key) EXPECT_TRUE(Load(key).ok());
}

// PROMISE: T20 a full file system
TEST_P(NvmeFiles, FullFileSystemTakesWhatFitsAndMoreLater) {
  ASSERT_EQ(::mkdir(directory().c_str(), 0700), 0);
  if (::mount("tmpfs", directory().c_str(), "tmpfs", 0, "size=2560k") != 0) {
    GTEST_SKIP() << "skipped: mounting a small tmpfs needs root";
  }
  Open(directory());
  uint64_t key = 1;
  while (Store(key).ok()) ++key;
  EXPECT_EQ(blocks_.size(), 2u * 15) << "two slabs of four";
  EXPECT_TRUE(tier_->stats().is_healthy);
  EXPECT_EQ(::mount("tmpfs", directory().c_str(), "tmpfs", MS_REMOUNT, "size=8m"), 0);
  Pass(15);
  while (Store(key).ok()) ++key;
  EXPECT_EQ(blocks_.size(), kSlabCount * 15);
  for (uint64_t each = 1; each < key; ++each) EXPECT_TRUE(Load(each).ok());
  Close();
  EXPECT_EQ(::umount2(directory().c_str(), MNT_DETACH), 0);
}

TEST_P(NvmeFiles, ReadOnlyFileSystemIsNamedAtStart) {
  ASSERT_EQ(::mkdir(directory().c_str(), 0700), 0);
  if (::mount("tmpfs", directory().c_str(), "tmpfs", MS_RDONLY, "size=1m") != 0) {
    GTEST_SKIP() << "skipped: mounting a tmpfs needs root";
  }
  std::string why;
  const auto disk =
      OpenDisk({.directory = directory(), .post = loop_.post(), .engine = GetParam()}, &why);
  EXPECT_EQ(disk.code(), StatusCode::kIo);
  EXPECT_EQ(disk.status().detail(), EROFS);
  EXPECT_NE(why.find(directory()), std::string::npos) << why;
  EXPECT_EQ(::umount2(directory().c_str(), MNT_DETACH), 0);
}

// ---- requests that the kernel itself does not finish ----------------------------------------

// A small ext4 whose writes hang while it is frozen.
class FrozenAtWill {
 public:
  explicit FrozenAtWill(const std::string& parent) : path_(parent + "/mounted") {
    const std::string image = parent + "/image";
    const std::string command = "truncate -s 32M " + image + " && mkfs.ext4 -q -F " + image +
                                " && mkdir " + path_ + " && mount -o loop " + image + " " + path_;
    is_there_ = std::system((command + " 2> /dev/null").c_str()) == 0;
    if (!is_there_) return;
    fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    guard_ =
        ::fork();  // a test that dies meanwhile could not be ended: its threads are the kernel's
    if (guard_ == 0) {
      ::sleep(30);
      ::ioctl(fd_, FITHAW, 0);
      ::_exit(0);
    }
  }
  ~FrozenAtWill() {
    if (!is_there_) return;
    Thaw();
    ::kill(guard_, SIGKILL);
    ::waitpid(guard_, nullptr, 0);
    ::close(fd_);
    ::umount2(path_.c_str(), MNT_DETACH);
  }
  void Freeze() { EXPECT_EQ(::ioctl(fd_, FIFREEZE, 0), 0) << errno; }
  void Thaw() { ::ioctl(fd_, FITHAW, 0); }
  bool is_there() const { return is_there_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool is_there_ = false;
  int fd_ = -1;
  pid_t guard_ = -1;
};

// A thread of this process waits in the kernel and can be neither woken nor ended.
bool IsAnyThreadStuck() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(task.path() / "stat");
    const std::string line{std::istreambuf_iterator<char>(stat), {}};
    const size_t state = line.rfind(')');
    if (state != std::string::npos && line.substr(state, 3) == ") D") return true;
  }
  return false;
}
void AwaitStuckThread() {
  for (int attempt = 0; attempt < 1000 && !IsAnyThreadStuck(); ++attempt) ::usleep(10'000);
  EXPECT_TRUE(IsAnyThreadStuck());
}

// PROMISE: T15 a file system that is frozen
TEST_P(NvmeFiles, WriteThatTheKernelHoldsSwitchesTheTierOff) {
  FrozenAtWill drive(scratch_.path());
  if (!drive.is_there()) GTEST_SKIP() << "skipped: mounting an ext4 needs root and a loop device";
  Open(drive.path() + "/domain");
  ASSERT_TRUE(Store(1).ok());
  const Result<Extent> extent = Allocate();
  ASSERT_TRUE(extent.ok());
  Pass(3);
  drive.Freeze();
  FillPattern(memory_.bytes(), 2);
  BlockRecord record;
  record.commit_id = 2;
  record.owner = 2;
  record.part_checksums = checksum_;
  record.key = {2, ~uint64_t{2}};
  ASSERT_TRUE(tier_->Write(77, *extent, record, memory_.bytes()).ok());
  blocks_[2] = {.extent = *extent};
  disk_->Flush();
  AwaitStuckThread();
  now_us_ += kStuckUs + 1;
  tier_->Tick();
  EXPECT_FALSE(tier_->stats().is_healthy);
  EXPECT_EQ(tier_->stats().stuck_transfers, 1u);
  EXPECT_EQ(tier_->Read(78, blocks_[1].extent, memory_.bytes()).code(), StatusCode::kUnsupported);
  drive.Thaw();
  EXPECT_TRUE(Await(77).ok());
  Pass(12);
  EXPECT_TRUE(Load(2).ok());
  ExpectServes(10);

  // The end does not wait for it; memory and files stay the kernel's until the process ends.
  const Result<Extent> other = Allocate();
  ASSERT_TRUE(other.ok());
  drive.Freeze();
  ASSERT_TRUE(tier_->Write(79, *other, record, memory_.bytes()).ok());
  disk_->Flush();
  AwaitStuckThread();
  const auto begin = std::chrono::steady_clock::now();
  Close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  drive.Thaw();
  std::string why;
  EXPECT_EQ(OpenDisk({.directory = drive.path() + "/domain", .post = loop_.post()}, &why).code(),
            StatusCode::kBusy);
}

INSTANTIATE_TEST_SUITE_P(Engines, NvmeFiles,
                         testing::Values(DiskEngineChoice::kUring, DiskEngineChoice::kThreads),
                         [](const auto& about) {
                           return about.param == DiskEngineChoice::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace terrace
