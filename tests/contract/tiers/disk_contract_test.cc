// The contract every Disk on a file system keeps, whichever engine moves its payload and whatever
// file system it lies on.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "contract/tiers/disk_rig.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kFileBytes = 8 * kMiB;
constexpr uint64_t kBlockBytes = 64 * kKiB;

struct Place {
  const char* name;
  DiskEngineChoice engine;
  std::string parent;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

class DiskContract : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override { Open({}); }
  void Open(DiskOptions options) {
    options.engine = GetParam().engine;
    rig_.Open(std::move(options));
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  Disk& disk() { return rig_.disk(); }

  DiskRig rig_{GetParam().parent};
};

TEST_P(DiskContract, WhatWasWrittenIsRead) {
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(2 * kMiB);
  const auto from = memory.bytes().first(kMiB);
  const auto into = memory.bytes().last(kMiB);
  FillPattern(from, 1);
  EXPECT_TRUE(
      rig_.Do({.op = DiskOp::kWrite, .file = file, .offset_bytes = kMiB, .from = from}).ok());
  EXPECT_TRUE(
      rig_.Do({.op = DiskOp::kRead, .file = file, .offset_bytes = kMiB, .into = into}).ok());
  EXPECT_TRUE(HasPattern(into, 1));
  EXPECT_EQ(disk().stats().read_bytes, kMiB);
  EXPECT_EQ(disk().stats().written_bytes, kMiB);
  EXPECT_EQ(disk().stats().requests_in_flight, 0u);
}

TEST_P(DiskContract, ManyInFlightEachFindItsOwnBytes) {
  constexpr uint32_t kBlocks = 100;
  const DiskFile file = rig_.MakeFile("slab", (kBlocks + 1) * kBlockBytes);
  SharedMemory memory(kBlocks * kBlockBytes);
  for (const DiskOp op : {DiskOp::kWrite, DiskOp::kRead}) {
    std::vector<uint64_t> tags;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const auto block = memory.bytes().subspan(i * kBlockBytes, kBlockBytes);
      FillPattern(block, op == DiskOp::kWrite ? i : 0xBAD);
      DiskRequest request{.op = op, .file = file, .offset_bytes = (i + 1) * kBlockBytes};
      op == DiskOp::kWrite ? request.from = block : request.into = block;
      const auto tag = rig_.Begin(request);
      ASSERT_TRUE(tag.ok());
      tags.push_back(*tag);
    }
    for (const uint64_t tag : tags) EXPECT_TRUE(rig_.Await(tag).ok());
  }
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(HasPattern(memory.bytes().subspan(i * kBlockBytes, kBlockBytes), i)) << i;
  }
}

TEST_P(DiskContract, FullQueueIsBusyAndNothingIsBegun) {
  Open({.queue_max = 4});
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(8 * kBlockBytes);
  std::vector<uint64_t> tags;
  for (uint32_t i = 0; i < 8; ++i) {
    const auto tag = rig_.Begin({.op = DiskOp::kRead,
                                 .file = file,
                                 .into = memory.bytes().subspan(i * kBlockBytes, kBlockBytes)});
    if (i < 4) {
      ASSERT_TRUE(tag.ok()) << i;
      tags.push_back(*tag);
    } else {
      EXPECT_EQ(tag.code(), StatusCode::kBusy) << i;
    }
  }
  EXPECT_EQ(disk().queue_max(), 4u);
  const size_t done_before = rig_.done_count();
  for (const uint64_t tag : tags) EXPECT_TRUE(rig_.Await(tag).ok());
  EXPECT_EQ(rig_.done_count(), done_before + 4);
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kSync, .file = file}).ok());
}

TEST_P(DiskContract, CompletionsComeInTurnsOfTheirOwn) {
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(kBlockBytes);
  const size_t done_before = rig_.done_count();
  const auto tag = rig_.Begin({.op = DiskOp::kRead, .file = file, .into = memory.bytes()});
  ASSERT_TRUE(tag.ok());
  ::usleep(20'000);  // long done, and still nothing was said
  disk().Flush();
  EXPECT_EQ(rig_.done_count(), done_before);
  EXPECT_TRUE(rig_.Await(*tag).ok());
}

TEST_P(DiskContract, ReadPastTheEndIsAnError) {
  const DiskFile file = rig_.MakeFile("slab", kMiB);
  SharedMemory memory(2 * kBlockBytes);
  const Status status = rig_.Do({.op = DiskOp::kRead,
                                 .file = file,
                                 .offset_bytes = kMiB - kBlockBytes,
                                 .into = memory.bytes()});
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(disk().stats().failures, 1u);
  std::vector<std::byte> bytes(10);
  EXPECT_EQ(disk().ReadNow(file, kMiB - 5, bytes).code(), StatusCode::kIo);
  EXPECT_TRUE(disk().ReadNow(file, kMiB - 10, bytes).ok());
}

TEST_P(DiskContract, MisalignedPayloadIsRefused) {
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(kBlockBytes);
  const auto bytes = memory.bytes();
  for (const DiskRequest& request :
       {DiskRequest{.op = DiskOp::kRead, .file = file, .offset_bytes = 512, .into = bytes},
        DiskRequest{.op = DiskOp::kRead, .file = file, .into = bytes.first(512)},
        DiskRequest{.op = DiskOp::kRead, .file = file, .into = bytes.subspan(512, 4096)},
        DiskRequest{.op = DiskOp::kRead, .file = file, .into = bytes.first(0)},
        DiskRequest{.op = DiskOp::kRead, .file = file + 1, .into = bytes},
        DiskRequest{.op = DiskOp::kWriteTable, .file = file, .offset_bytes = 1, .from = bytes}}) {
    EXPECT_EQ(rig_.Do(request).code(), StatusCode::kInvalid);
  }
  EXPECT_EQ(disk().stats().requests_in_flight, 0u);
}

TEST_P(DiskContract, CreatedFilesAreListedOpenedAndRemoved) {
  const auto sector = Pattern(4096, 7);
  const DiskFile file = disk().NewFile();
  ASSERT_TRUE(rig_.Do({.op = DiskOp::kCreate,
                       .file = file,
                       .length_bytes = kFileBytes,
                       .from = sector,
                       .name = "slab-1.terrace"})
                  .ok());
  std::vector<std::string> names;
  ASSERT_TRUE(disk().ListNow(&names).ok());
  EXPECT_EQ(names, std::vector<std::string>{"slab-1.terrace"});

  Open({});  // a successor
  DiskFile opened = kDiskFileNone;
  uint64_t length_bytes = 0;
  ASSERT_TRUE(disk().OpenNow("slab-1.terrace", &opened, &length_bytes).ok());
  EXPECT_EQ(length_bytes, kFileBytes);
  std::vector<std::byte> read(4096);
  ASSERT_TRUE(disk().ReadNow(opened, 0, read).ok());
  EXPECT_EQ(read, sector);
  EXPECT_EQ(disk().OpenNow("slab-2.terrace", &opened, &length_bytes).code(), StatusCode::kNotFound);

  EXPECT_TRUE(rig_.Do({.op = DiskOp::kRemove, .file = opened}).ok());
  ASSERT_TRUE(disk().ListNow(&names).ok());
  EXPECT_TRUE(names.empty());
  EXPECT_EQ(rig_.Do({.op = DiskOp::kSync, .file = opened}).code(), StatusCode::kInvalid);
  EXPECT_EQ(disk().NewFile(), opened);  // the number is free again
}

TEST_P(DiskContract, NamesThatLeaveTheDirectoryAreRefused) {
  DiskFile file = kDiskFileNone;
  uint64_t length_bytes = 0;
  for (const std::string name : {"../slab", "a/b", "..", ".", "", "lock"}) {
    EXPECT_EQ(disk().OpenNow(name, &file, &length_bytes).code(), StatusCode::kInvalid) << name;
    EXPECT_FALSE(rig_.Do({.op = DiskOp::kCreate,
                          .file = disk().NewFile(),
                          .length_bytes = kFileBytes,
                          .name = name})
                     .ok())
        << name;
  }
  EXPECT_NE(::access((rig_.directory() + "/../slab").c_str(), F_OK), 0);
}

TEST_P(DiskContract, FailedCreationLeavesNothing) {
  rig_.MakeFile("slab", kFileBytes);
  const DiskFile second = disk().NewFile();
  const Status taken =
      rig_.Do({.op = DiskOp::kCreate, .file = second, .length_bytes = kFileBytes, .name = "slab"});
  EXPECT_EQ(taken.code(), StatusCode::kIo);
  EXPECT_EQ(taken.detail(), EEXIST);
  EXPECT_EQ(disk().NewFile(), second);
  const Status huge = rig_.Do({.op = DiskOp::kCreate,
                               .file = second,
                               .length_bytes = uint64_t{1} << 62,
                               .name = "too-long"});
  EXPECT_EQ(huge.code(), StatusCode::kIo);
  std::vector<std::string> names;
  ASSERT_TRUE(disk().ListNow(&names).ok());
  EXPECT_EQ(names, std::vector<std::string>{"slab"});
}

TEST_P(DiskContract, TableWritesGoBesidePayloadInOrder) {
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(kMiB);
  FillPattern(memory.bytes(), 3);
  std::vector<uint64_t> tags;
  std::vector<std::byte> entry(300);
  for (uint32_t round = 0; round < 20; ++round) {
    std::ranges::fill(entry, std::byte(round));
    for (const uint64_t offset_bytes : {4096u + 700u, 4096u + 1000u}) {
      const auto tag = rig_.Begin(
          {.op = DiskOp::kWriteTable, .file = file, .offset_bytes = offset_bytes, .from = entry});
      ASSERT_TRUE(tag.ok());
      tags.push_back(*tag);
    }
    std::ranges::fill(entry, std::byte{0xEE});  // copied by then
    const auto tag = rig_.Begin({.op = DiskOp::kWrite,
                                 .file = file,
                                 .offset_bytes = kMiB + round % 4 * kMiB,
                                 .from = memory.bytes()});
    ASSERT_TRUE(tag.ok());
    tags.push_back(*tag);
  }
  for (const uint64_t tag : tags) EXPECT_TRUE(rig_.Await(tag).ok());
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kSync, .file = file}).ok());
  std::vector<std::byte> sector(4096);
  ASSERT_TRUE(disk().ReadNow(file, 4096, sector).ok());
  EXPECT_EQ(std::ranges::count(sector, std::byte{19}), 600);
  EXPECT_EQ(std::ranges::count(sector, std::byte{0}), 4096 - 600);
  std::vector<std::byte> payload(kMiB);
  ASSERT_TRUE(disk().ReadNow(file, 4 * kMiB, payload).ok());
  EXPECT_TRUE(HasPattern(payload, 3));
}

TEST_P(DiskContract, BusyFileIsNotRemoved) {
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(kBlockBytes);
  const auto tag = rig_.Begin({.op = DiskOp::kRead, .file = file, .into = memory.bytes()});
  ASSERT_TRUE(tag.ok());
  EXPECT_EQ(disk().Submit({.op = DiskOp::kRemove, .file = file}).code(), StatusCode::kBusy);
  EXPECT_TRUE(rig_.Await(*tag).ok());
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kRemove, .file = file}).ok());
}

// Else another file got the number, and was removed in its place.
TEST_P(DiskContract, FileThatCannotBeRemovedKeepsItsNumberUntilItCan) {
  namespace fs = std::filesystem;
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  const fs::path path = fs::path(rig_.directory()) / "slab", elsewhere = path.string() + ".moved";
  fs::rename(path, elsewhere);
  fs::create_directory(path);  // which unlink does not remove
  EXPECT_EQ(rig_.Do({.op = DiskOp::kRemove, .file = file}).code(), StatusCode::kIo);
  const DiskFile other = rig_.MakeFile("other", kFileBytes);
  EXPECT_NE(other, file);
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kSync, .file = file}).ok()) << "it is as open as before";
  fs::remove(path);
  fs::rename(elsewhere, path);
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kRemove, .file = file}).ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(fs::path(rig_.directory()) / "other"));
  EXPECT_EQ(disk().NewFile(), file);
}

TEST_P(DiskContract, RegisteredMemoryIsUsedAndGivenBack) {
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(4 * kMiB);
  SharedMemory beside(kMiB);
  disk().RegisterBuffer(3, memory.bytes());
  disk().RegisterBuffer(1, beside.bytes());
  FillPattern(memory.bytes().first(kMiB), 5);
  for (int round = 0; round < 2; ++round) {  // before and after the registration is through
    EXPECT_TRUE(rig_.Do({.op = DiskOp::kWrite,
                         .file = file,
                         .offset_bytes = kMiB,
                         .from = memory.bytes().first(kMiB)})
                    .ok());
    EXPECT_TRUE(rig_.Do({.op = DiskOp::kRead,
                         .file = file,
                         .offset_bytes = kMiB,
                         .into = memory.bytes().last(kMiB)})
                    .ok());
    EXPECT_TRUE(HasPattern(memory.bytes().last(kMiB), 5));
  }
  const auto tag = rig_.Begin({.op = DiskOp::kRead, .file = file, .into = memory.bytes()});
  ASSERT_TRUE(tag.ok());
  bool is_free = false;
  disk().UnregisterBuffer(3, [&] {
    EXPECT_EQ(rig_.disk().stats().requests_in_flight, 0u);
    is_free = true;
  });
  EXPECT_FALSE(is_free);  // the read uses it
  EXPECT_TRUE(rig_.loop().RunUntil([&] { return is_free; }));
  EXPECT_TRUE(rig_.Await(*tag).ok());
  EXPECT_EQ(memory.resident_bytes(), 4 * kMiB);
  memory.Punch();
  EXPECT_EQ(memory.resident_bytes(), 0u);
  disk().RegisterBuffer(3, memory.bytes());  // the number serves again
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kRead, .file = file, .into = beside.bytes()}).ok());
  for (const uint32_t index : {1u, 3u}) {
    is_free = false;
    disk().UnregisterBuffer(index, [&] { is_free = true; });
    EXPECT_TRUE(rig_.loop().RunUntil([&] { return is_free; }));
  }
}

TEST_P(DiskContract, MoreBuffersThanTheTableHoldsStillWork) {
  Open({.buffers_max = 1});
  const DiskFile file = rig_.MakeFile("slab", kFileBytes);
  SharedMemory memory(2 * kMiB);
  disk().RegisterBuffer(0, memory.bytes().first(kMiB));
  disk().RegisterBuffer(7, memory.bytes().last(kMiB));
  for (const auto half : {memory.bytes().first(kMiB), memory.bytes().last(kMiB)}) {
    EXPECT_TRUE(rig_.Do({.op = DiskOp::kRead, .file = file, .into = half}).ok());
  }
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kRead, .file = file, .into = memory.bytes()}).ok());
  bool is_free = false;
  disk().UnregisterBuffer(7, [&] { is_free = true; });
  EXPECT_TRUE(rig_.loop().RunUntil([&] { return is_free; }));
}

TEST_P(DiskContract, EndsWithRequestsInFlight) {
  const DiskFile file = rig_.MakeFile("slab", 64 * kMiB);
  SharedMemory memory(64 * kMiB);
  const size_t done_before = rig_.done_count();
  for (uint32_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(rig_.Begin({.op = DiskOp::kRead,
                            .file = file,
                            .offset_bytes = i * kMiB,
                            .into = memory.bytes().subspan(i * kMiB, kMiB)})
                    .ok());
  }
  rig_.Close();
  EXPECT_FALSE(rig_.loop().RunUntil([] { return true; }) && rig_.done_count() != done_before);
}

TEST_P(DiskContract, SecondDiskOfADirectoryIsRefusedByName) {
  std::string why;
  StoreLoop loop;
  const auto second = OpenDisk({.directory = rig_.directory(), .post = loop.post()}, &why);
  EXPECT_EQ(second.code(), StatusCode::kBusy);
  EXPECT_NE(why.find(rig_.directory()), std::string::npos) << why;
  EXPECT_NE(why.find(std::to_string(::getpid())), std::string::npos) << why;
}

TEST_P(DiskContract, DirectoryIsPrivateAndSpaceIsKnown) {
  struct stat about {};
  ASSERT_EQ(::stat(rig_.directory().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0700u);
  const DiskStats stats = disk().stats();
  EXPECT_GT(stats.filesystem_bytes, 0u);
  EXPECT_LE(stats.filesystem_free_bytes, stats.filesystem_bytes);
}

TEST_P(DiskContract, NoMoreFilesThanItMayHold) {
  Open({.files_max = 2});
  rig_.MakeFile("a", kMiB);
  rig_.MakeFile("b", kMiB);
  EXPECT_EQ(disk().NewFile(), kDiskFileNone);
  EXPECT_EQ(rig_.Do({.op = DiskOp::kCreate, .length_bytes = kMiB, .name = "c"}).code(),
            StatusCode::kInvalid);
}

// Of 5 descriptors 1 is kept for others.
TEST_P(DiskContract, FilesOfAllDisksLeaveOthersTheirDescriptors) {
  const auto budget =
      std::make_shared<FileBudget>(FileBudget::Options{.fds_max = 5, .fds_kept = 1});
  Open({.budget = budget});
  const DiskFile a = rig_.MakeFile("a", kMiB);
  EXPECT_FALSE(disk().file_room().is_full());
  ASSERT_TRUE(budget->Take()) << "another disk's";
  EXPECT_EQ(disk().NewFile(), kDiskFileNone);
  EXPECT_TRUE(disk().file_room().is_full());
  EXPECT_EQ(disk().file_room().fds_max, 5u);
  ASSERT_TRUE(rig_.Do({.op = DiskOp::kRemove, .file = a}).ok());
  EXPECT_FALSE(disk().file_room().is_full());
  rig_.MakeFile("b", kMiB);
  budget->Give();
  Open({.budget = budget});
  EXPECT_EQ(budget->open_count(), 0u) << "the last disk has closed its own";
  ASSERT_TRUE(budget->Take());
  ASSERT_TRUE(budget->Take());
  DiskFile opened = kDiskFileNone;
  uint64_t length_bytes = 0;
  EXPECT_EQ(disk().OpenNow("b", &opened, &length_bytes).code(), StatusCode::kNoSpace);
  EXPECT_EQ(length_bytes, kMiB) << "it counts though it is not open";
  budget->Give();
  EXPECT_TRUE(disk().OpenNow("b", &opened, &length_bytes).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Disks, DiskContract,
    testing::Values(Place{"UringOnDisk", DiskEngineChoice::kUring, testing::TempDir()},
                    Place{"ThreadsOnDisk", DiskEngineChoice::kThreads, testing::TempDir()},
                    Place{"UringInMemory", DiskEngineChoice::kUring, "/dev/shm"},
                    Place{"ThreadsInMemory", DiskEngineChoice::kThreads, "/dev/shm"},
                    Place{"AutoOnDisk", DiskEngineChoice::kAuto, testing::TempDir()}),
    [](const auto& about) { return about.param.name; });

}  // namespace
}  // namespace terrace
