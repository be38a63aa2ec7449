#include "tiers/crypto/cipher_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/group_keys.h"
#include "unit/tiers/nvme/fake_disk.h"

namespace terrace {
namespace {

constexpr uint64_t kBytes = 64 * kKiB;

// A disk of the test's behind a CipherDisk with threads; the test is the store thread.
class CipherDiskTest : public testing::Test, public DiskListener {
 protected:
  void OnDiskDone(uint64_t tag, Status status) override { done_[tag] = status; }
  void Post(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }
  void RunOne(std::unique_lock<std::mutex>& lock) {
    const auto call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call();
  }
  // Turns until the disk below has been asked so much, or a request is done.
  void RunUntil(const std::function<bool()>& is_over) {
    while (!is_over()) {
      std::unique_lock lock(mutex_);
      ASSERT_TRUE(
          changed_.wait_for(lock, std::chrono::seconds(30), [this] { return !calls_.empty(); }));
      RunOne(lock);
    }
  }
  // What has been posted so far, perhaps in vain.
  void RunAll() {
    while (true) {
      std::unique_lock lock(mutex_);
      if (calls_.empty()) return;
      RunOne(lock);
    }
  }
  std::unique_ptr<CipherDisk> Open(uint64_t bounce_bytes_max = kBounceBytesMax) {
    auto disk = std::make_unique<CipherDisk>(
        below_, CipherDisk::Options{.pool = &pool_, .bounce_bytes_max = bounce_bytes_max});
    disk->SetListener(this);
    return disk;
  }
  std::shared_ptr<PayloadCipher> Cipher() {
    auto cipher = std::make_shared<PayloadCipher>();
    cipher->key = key_;
    cipher->seal.salt[0] = static_cast<std::byte>(++salts_);
    return cipher;
  }
  DiskRequest Write(uint64_t tag, std::span<const std::byte> from,
                    std::shared_ptr<PayloadCipher> cipher) {
    return {.tag = tag, .op = DiskOp::kWrite, .file = 1, .from = from, .cipher = std::move(cipher)};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  FakeDisk below_{4};
  CipherPool pool_{{.threads = 2, .post = [this](std::function<void()> call) { Post(call); }}};
  std::shared_ptr<GroupKey> key_ = std::make_shared<GroupKey>(sim::KeyFrom(1));
  std::map<uint64_t, Status> done_;
  std::vector<std::byte> plain_ = std::vector<std::byte>(kBytes, std::byte{42});
  int salts_ = 0;
};

TEST_F(CipherDiskTest, WhatIsWrittenIsCipherTextOfTheSameLengthAndComesBack) {
  const auto disk = Open();
  const auto cipher = Cipher();
  ASSERT_TRUE(disk->Submit(Write(1, plain_, cipher)).ok());
  EXPECT_TRUE(below_.asked.empty());
  EXPECT_EQ(disk->stats().requests_in_flight, 1u);
  RunUntil([&] { return !below_.asked.empty(); });
  ASSERT_EQ(below_.asked[0].from.size(), kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(below_.asked[0].from.data()) % 4096, 0u);
  std::vector<std::byte> sealed(below_.asked[0].from.begin(), below_.asked[0].from.end());
  EXPECT_LT(std::ranges::count(sealed, std::byte{42}), 1000);
  EXPECT_EQ(plain_, std::vector<std::byte>(kBytes, std::byte{42}));
  below_.Answer();
  EXPECT_TRUE(done_.at(1).ok());

  ASSERT_TRUE(
      disk->Submit({.tag = 2, .op = DiskOp::kRead, .file = 1, .into = sealed, .cipher = cipher})
          .ok());
  below_.Answer();
  EXPECT_FALSE(done_.contains(2)) << "told before it was decrypted";
  RunUntil([&] { return done_.contains(2); });
  EXPECT_TRUE(done_.at(2).ok());
  EXPECT_EQ(sealed, plain_);
}

TEST_F(CipherDiskTest, BytesThatWereChangedAreCorruptAndWiped) {
  const auto disk = Open();
  std::vector<std::byte> bytes = plain_;
  ASSERT_TRUE(
      disk->Submit({.tag = 2, .op = DiskOp::kRead, .file = 1, .into = bytes, .cipher = Cipher()})
          .ok());
  below_.Answer();
  RunUntil([&] { return done_.contains(2); });
  EXPECT_EQ(done_.at(2).code(), StatusCode::kCorrupt);
  EXPECT_EQ(bytes, std::vector<std::byte>(kBytes));
}

TEST_F(CipherDiskTest, WithoutACipherAllPassesAsItIs) {
  const auto disk = Open();
  ASSERT_TRUE(disk->Submit(Write(5, plain_, nullptr)).ok());
  ASSERT_EQ(below_.asked.size(), 1u);
  EXPECT_EQ(below_.asked[0].from.data(), plain_.data());
  EXPECT_EQ(below_.asked[0].tag, 5u);
  below_.Answer(Status(StatusCode::kIo, "", EIO));
  EXPECT_EQ(done_.at(5).code(), StatusCode::kIo);
}

TEST_F(CipherDiskTest, WritesBeyondTheBounceMemoryWaitForIt) {
  const auto disk = Open(2 * kBytes);
  for (uint64_t tag = 1; tag <= 4; ++tag) {
    ASSERT_TRUE(disk->Submit(Write(tag, plain_, Cipher())).ok());
  }
  EXPECT_EQ(disk->Submit(Write(5, plain_, Cipher())).code(), StatusCode::kBusy)
      << "what waits counts in the disk's queue";
  RunUntil([&] { return below_.asked.size() == 2; });
  RunAll();
  EXPECT_EQ(below_.asked.size(), 2u);
  below_.Answer();
  RunUntil([&] { return below_.asked.size() == 2; });
  below_.Answer();
  below_.Answer();
  RunUntil([&] { return below_.asked.size() == 1; });
  below_.Answer();
  EXPECT_EQ(done_.size(), 4u);
  EXPECT_EQ(disk->stats().requests_in_flight, 0u);
}

TEST_F(CipherDiskTest, OnePayloadLongerThanTheBounceMemoryGoesAlone) {
  const auto disk = Open(kBytes / 2);
  ASSERT_TRUE(disk->Submit(Write(1, plain_, Cipher())).ok());
  ASSERT_TRUE(disk->Submit(Write(2, plain_, Cipher())).ok());
  RunUntil([&] { return below_.asked.size() == 1; });
  below_.Answer();
  RunUntil([&] { return below_.asked.size() == 1; });
  below_.Answer();
  EXPECT_TRUE(done_.at(1).ok() && done_.at(2).ok());
}

TEST_F(CipherDiskTest, AWriteUnderADestroyedKeyNeverReachesTheDisk) {
  const auto disk = Open();
  key_->Destroy();
  ASSERT_TRUE(disk->Submit(Write(1, plain_, Cipher())).ok());
  RunUntil([&] { return done_.contains(1); });
  EXPECT_EQ(done_.at(1).code(), StatusCode::kGone);
  EXPECT_TRUE(below_.asked.empty());
}

TEST_F(CipherDiskTest, MemoryStaysRegisteredWhileItIsBeingDecrypted) {
  const auto disk = Open();
  std::vector<std::byte> bytes = plain_;
  disk->RegisterBuffer(3, bytes);
  bool is_free = false;
  ASSERT_TRUE(
      disk->Submit({.tag = 2, .op = DiskOp::kRead, .file = 1, .into = bytes, .cipher = Cipher()})
          .ok());
  below_.Answer();
  disk->UnregisterBuffer(3, [&] { is_free = true; });
  EXPECT_FALSE(is_free);
  RunUntil([&] { return done_.contains(2); });
  EXPECT_TRUE(is_free);
}

TEST_F(CipherDiskTest, TheEndWaitsForWhatIsBeingEncrypted) {
  auto disk = Open();
  for (uint64_t tag = 1; tag <= 4; ++tag) {
    ASSERT_TRUE(disk->Submit(Write(tag, plain_, Cipher())).ok());
  }
  disk.reset();
  plain_ = {};  // nobody reads it any more: sanitizers would say so
  EXPECT_TRUE(done_.empty());
}

TEST(BounceMemory, KeepsNoMoreThanItsLimit) {
  BounceMemory memory(4 * kMiB);
  const auto a = memory.Take(2 * kMiB), b = memory.Take(2 * kMiB);
  EXPECT_TRUE(memory.Take(4096).empty());
  memory.Give(a);
  memory.Give(b);
  EXPECT_EQ(memory.held_bytes(), 4 * kMiB);
  const auto c = memory.Take(kMiB);  // of another length: one of those goes
  EXPECT_EQ(memory.held_bytes(), 3 * kMiB);
  memory.Give(c);
  const auto d = memory.Take(8 * kMiB);
  EXPECT_EQ(memory.held_bytes(), 8 * kMiB);
  memory.Give(d);
  EXPECT_EQ(memory.held_bytes(), 0u);
}

}  // namespace
}  // namespace terrace
