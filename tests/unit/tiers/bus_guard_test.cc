#include "tiers/arena/bus_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kPageBytes = 4096;

// A mapping longer than its file: what lies behind the end is SIGBUS, as a hole in huge pages is
// when the pool has none left.
class BusGuard : public testing::Test {
 protected:
  BusGuard() : fd_(memfd_create("test", MFD_CLOEXEC)) {
    Truncate(kPageBytes);
    void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    base_ = static_cast<std::byte*>(mapped);
    EXPECT_TRUE(GuardFromBus(base_, kBytes, kPageBytes));
  }
  ~BusGuard() override {
    EndGuard(base_);
    munmap(base_, kBytes);
    close(fd_);
  }
  void Truncate(uint64_t bytes) { ASSERT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0); }
  std::byte Read(uint64_t at) { return *const_cast<volatile std::byte*>(base_ + at); }

  static constexpr uint64_t kBytes = 4 * kPageBytes;
  int fd_ = -1;
  std::byte* base_ = nullptr;
};

// PROMISE: T33 holes
TEST_F(BusGuard, APageThatIsNotThereReadsAsZerosAndIsCounted) {
  const uint64_t before = LostPageCount();
  base_[7] = std::byte{1};
  EXPECT_EQ(Read(kPageBytes + 5), std::byte{0});
  EXPECT_EQ(LostPageCount(), before + 1);
  EXPECT_TRUE(HasLostPages());
  EXPECT_EQ(Read(kPageBytes + 500), std::byte{0});
  EXPECT_EQ(LostPageCount(), before + 1) << "it is there now";
  EXPECT_EQ(Read(7), std::byte{1}) << "its neighbour is what it was";
  std::thread([this] { base_[3 * kPageBytes] = std::byte{9}; }).join();
  EXPECT_EQ(LostPageCount(), before + 2) << "of any thread, writes too";
}

TEST_F(BusGuard, ThePageComesBackWhenItCanBeHad) {
  EXPECT_EQ(Read(kPageBytes), std::byte{0});
  RestoreLostPages(base_, kBytes, fd_, 0);
  EXPECT_TRUE(HasLostPages()) << "the file is as short as it was";
  Truncate(kBytes);
  const std::byte nine{9};
  ASSERT_EQ(pwrite(fd_, &nine, 1, kPageBytes), 1);
  EXPECT_EQ(Read(kPageBytes), std::byte{0}) << "a page of its own";
  RestoreLostPages(base_, kBytes, fd_, 0);
  EXPECT_FALSE(HasLostPages());
  EXPECT_EQ(Read(kPageBytes), nine);
}

// What is written there is right for whoever wrote it, and for nobody else.
TEST_F(BusGuard, WhatHasALostPageIsToldUntilThePageIsBack) {
  EXPECT_FALSE(HasLostPageIn(base_, kBytes));
  base_[2 * kPageBytes] = std::byte{1};
  EXPECT_TRUE(HasLostPageIn(base_, kBytes));
  EXPECT_TRUE(HasLostPageIn(base_ + 3 * kPageBytes - 1, 1));
  EXPECT_TRUE(HasLostPageIn(base_ + 2 * kPageBytes, 1));
  EXPECT_FALSE(HasLostPageIn(base_, 2 * kPageBytes));
  EXPECT_FALSE(HasLostPageIn(base_ + 3 * kPageBytes, kPageBytes));
  std::byte other{};
  EXPECT_FALSE(HasLostPageIn(&other, 1));
  Truncate(kBytes);
  RestoreLostPages(base_, kBytes, fd_, 0);
  EXPECT_FALSE(HasLostPageIn(base_, kBytes));
}

TEST_F(BusGuard, BeforeAPopulateItIsMappedAnewWhateverComes) {
  EXPECT_EQ(Read(2 * kPageBytes), std::byte{0});
  RemapLostPages(base_ + 2 * kPageBytes, kPageBytes, fd_, 2 * kPageBytes);
  EXPECT_FALSE(HasLostPages());
  const uint64_t before = LostPageCount();
  EXPECT_EQ(Read(2 * kPageBytes), std::byte{0});
  EXPECT_EQ(LostPageCount(), before + 1) << "lost once more";
}

TEST_F(BusGuard, OutsideOfItASigbusEndsTheProcess) {
  void* const other = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd_, 0);
  EXPECT_DEATH((void)*(static_cast<volatile char*>(other) + kPageBytes), "");
  munmap(other, kBytes);
}

}  // namespace
}  // namespace terrace
