#include "cuda/host/host_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "cuda/host/paged_host.h"
#include "cuda/host/stream.h"

namespace terrace {
namespace {

Device OpenHost(uint32_t worker_count) {
  return std::move(Device::Open(HostDeviceOps(), {.worker_count = worker_count}).value());
}

std::vector<std::byte> RandomBytes(size_t byte_count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(byte_count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(HostDevice, CopiesInOneStreamRunInTheirOrder) {
  const Device device = OpenHost(4);
  Stream stream = std::move(Stream::Create(device, StreamPriority::kStore).value());
  Event done = std::move(Event::Create(device).value());
  const std::vector<std::byte> first = RandomBytes(3 << 20, 1);
  std::vector<std::byte> middle(first.size());
  std::vector<std::byte> last(first.size());
  for (int round = 0; round < 20; ++round) {
    std::ranges::fill(middle, std::byte{0});
    std::ranges::fill(last, std::byte{0});
    const CopyPiece pieces[] = {{middle.data(), first.data(), first.size()},
                                {last.data(), middle.data(), middle.size()}};
    ASSERT_TRUE(stream.Copy(CopyDirection::kToHost, {&pieces[0], 1}).ok());
    ASSERT_TRUE(stream.Copy(CopyDirection::kToHost, {&pieces[1], 1}).ok());
    ASSERT_TRUE(done.Record(stream).ok());
    ASSERT_TRUE(done.Await().ok());
    ASSERT_EQ(last, first);
  }
}

TEST(HostDevice, AStreamThatWaitsBeginsAfterTheEvent) {
  const Device device = OpenHost(4);
  Stream store = std::move(Stream::Create(device, StreamPriority::kStore).value());
  Stream load = std::move(Stream::Create(device, StreamPriority::kLoad).value());
  Event copied = std::move(Event::Create(device).value());
  Event done = std::move(Event::Create(device).value());
  const std::vector<std::byte> first = RandomBytes(8 << 20, 2);
  std::vector<std::byte> middle(first.size());
  std::vector<std::byte> last(first.size());
  for (int round = 0; round < 20; ++round) {
    std::ranges::fill(middle, std::byte{0});
    const CopyPiece there{middle.data(), first.data(), first.size()};
    const CopyPiece back{last.data(), middle.data(), middle.size()};
    ASSERT_TRUE(store.Copy(CopyDirection::kToHost, {&there, 1}).ok());
    ASSERT_TRUE(copied.Record(store).ok());
    ASSERT_TRUE(load.Wait(copied, StreamEdge::kStaging).ok());
    ASSERT_TRUE(load.Copy(CopyDirection::kToDevice, {&back, 1}).ok());
    ASSERT_TRUE(done.Record(load).ok());
    ASSERT_TRUE(done.Await().ok());
    ASSERT_EQ(last, first);
  }
}

TEST(HostDevice, AnEventNeverRecordedIsReached) {
  const Device device = OpenHost(1);
  const Event event = std::move(Event::Create(device).value());
  EXPECT_TRUE(event.Query().ok());
  EXPECT_TRUE(event.Await().ok());
}

TEST(HostDevice, WhatIsDestroyedWhileQueuedStillRuns) {
  const Device device = OpenHost(1);
  const std::vector<std::byte> from = RandomBytes(4 << 20, 3);
  std::vector<std::byte> to(from.size());
  Event done = std::move(Event::Create(device).value());
  {
    Stream stream = std::move(Stream::Create(device, StreamPriority::kStore).value());
    Event passing = std::move(Event::Create(device).value());
    const CopyPiece piece{to.data(), from.data(), from.size()};
    ASSERT_TRUE(stream.Copy(CopyDirection::kToHost, {&piece, 1}).ok());
    ASSERT_TRUE(passing.Record(stream).ok());
    ASSERT_TRUE(stream.Wait(passing, StreamEdge::kStaging).ok());
    ASSERT_TRUE(done.Record(stream).ok());
  }
  EXPECT_TRUE(done.Await().ok());
  EXPECT_EQ(to, from);
}

TEST(HostDevice, WorkersAreBounded) {
  for (const uint32_t worker_count : {uint32_t{0}, kHostWorkersMax + 1}) {
    EXPECT_EQ(Device::Open(HostDeviceOps(), {.worker_count = worker_count}).code(),
              StatusCode::kInvalid);
  }
  EXPECT_EQ(Device::Open(HostDeviceOps(), {.device_index = 1}).code(), StatusCode::kNotFound);
}

TEST(HostDevice, LaunchesPastTheLimitsAreRefused) {
  const Device device = OpenHost(1);
  Stream stream = std::move(Stream::Create(device, StreamPriority::kStore).value());
  std::vector<PagedPage> pages(kPagedPagesMax + 1);
  const PagedRow row;
  PagedLaunch good;
  good.run_bytes = 1;
  good.rows = &row;
  good.row_count = 1;
  good.pages = pages.data();
  good.page_count = 1;
  good.thread_blocks_max = 1;
  ASSERT_TRUE(ValidateLaunch(good).ok());
  const auto refused = [&](auto&& change) {
    PagedLaunch launch = good;
    change(launch);
    return stream.Copy(launch).code();
  };
  using Launch = PagedLaunch&;
  EXPECT_EQ(refused([](Launch l) { l.page_count = 0; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.page_count = kPagedPagesMax + 1; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.row_count = 0; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.run_bytes = 0; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.thread_blocks_max = 0; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.axis_count = 1; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.struct_bytes = 8; }), StatusCode::kInvalid);
  EXPECT_EQ(refused([](Launch l) { l.path = PagedPath::kBulk; }), StatusCode::kUnsupported);
  const std::vector<CopyPiece> pieces(kBatchPiecesMax + 1);
  EXPECT_EQ(stream.Copy(CopyDirection::kToHost, pieces).code(), StatusCode::kInvalid);
  EXPECT_EQ(stream.Copy(CopyDirection::kToHost, {}).code(), StatusCode::kInvalid);
}

TEST(HostDevice, ASlabIsOneMemoryInTwoMappings) {
  const Device device = OpenHost(1);
  const DeviceOps& ops = device.ops();
  constexpr uint64_t kBytes = 4 << 20;
  int32_t fd = -1;
  ASSERT_EQ(ops.create_slab(device.handle(), kBytes, &fd).code, 0);
  void* writer = nullptr;
  void* reader = nullptr;
  ASSERT_EQ(ops.map_slab(device.handle(), fd, kBytes, SlabAccess::kReadWrite, &writer).code, 0);
  ASSERT_EQ(ops.map_slab(device.handle(), fd, kBytes, SlabAccess::kRead, &reader).code, 0);
  std::memset(writer, 0x5A, kBytes);
  EXPECT_EQ(std::memcmp(writer, reader, kBytes), 0);
  EXPECT_NE(ftruncate(fd, 0), 0) << "who can shrink a slab can fault everybody who maps it";
  void* wrong = nullptr;
  EXPECT_NE(ops.map_slab(device.handle(), fd, 2 * kBytes, SlabAccess::kRead, &wrong).code, 0);
  close(fd);
  EXPECT_EQ(*static_cast<unsigned char*>(reader), 0x5A) << "a mapping outlives the descriptor";
  EXPECT_EQ(ops.unmap_slab(device.handle(), writer, kBytes).code, 0);
  EXPECT_EQ(ops.unmap_slab(device.handle(), reader, kBytes).code, 0);
  EXPECT_NE(ops.create_slab(device.handle(), kBytes + 1, &fd).code, 0);
}

TEST(HostDevice, ASlabIsPaidForAndOneThatMayShrinkIsNotMapped) {
  const Device device = OpenHost(1);
  const DeviceOps& ops = device.ops();
  constexpr uint64_t kBytes = 2 << 20;
  int32_t fd = -1;
  ASSERT_EQ(ops.create_slab(device.handle(), kBytes, &fd).code, 0);
  struct stat file;
  ASSERT_EQ(fstat(fd, &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_blocks) * 512, kBytes) << "no write wants memory later";
  close(fd);
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(unsealed, kBytes), 0);
  void* mapped = nullptr;
  const DeviceStatus refused =
      ops.map_slab(device.handle(), unsealed, kBytes, SlabAccess::kReadWrite, &mapped);
  EXPECT_EQ(refused.code, static_cast<int32_t>(StatusCode::kInvalid)) << refused.what;
  close(unsealed);
}

}  // namespace
}  // namespace terrace
