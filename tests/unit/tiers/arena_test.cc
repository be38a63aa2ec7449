#include "tiers/arena/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include "huge_pages.h"
#include "tiers/arena/slot_table.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSegmentBytes = 2 * kMiB;

// What the arena's thread reported, for the test's thread to wait on.
class Reports {
 public:
  void Post(uint32_t segment, Status status) {
    const std::lock_guard lock(mutex_);
    reports_.emplace_back(segment, status);
    posted_.notify_all();
  }
  std::pair<uint32_t, Status> Wait() {
    std::unique_lock lock(mutex_);
    posted_.wait(lock, [this] { return !reports_.empty(); });
    const auto report = reports_.front();
    reports_.pop_front();
    return report;
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::pair<uint32_t, Status>> reports_;
};

class ArenaTest : public testing::Test {
 protected:
  Arena::Options Options(uint32_t segments_max, uint32_t node_count = 1) {
    Arena::Options options;
    options.name = "test";
    options.segment_bytes = kSegmentBytes;
    options.segments_max = segments_max;
    options.segments_free_min = 1;
    options.backing = ArenaBackingChoice::kShmem;
    options.nodes.assign(node_count, 0);
    options.on_populated = [this](uint32_t segment, Status status) {
      populated_.Post(segment, status);
    };
    options.on_punched = [this](uint32_t segment, Status status) {
      punched_.Post(segment, status);
    };
    return options;
  }
  std::unique_ptr<Arena> Make(Arena::Options options) {
    Result<std::unique_ptr<Arena>> arena = Arena::Create(std::move(options), &why_);
    EXPECT_TRUE(arena.ok()) << why_;
    return arena.ok() ? std::move(*arena) : nullptr;
  }
  void Populate(Arena* arena, uint32_t segment) {
    arena->BeginPopulate(segment);
    const auto [reported, status] = populated_.Wait();
    EXPECT_EQ(reported, segment);
    EXPECT_TRUE(status.ok()) << status.what() << " " << status.detail();
  }
  void Punch(Arena* arena, uint32_t segment) {
    arena->BeginPunch(segment);
    const auto [reported, status] = punched_.Wait();
    EXPECT_EQ(reported, segment);
    EXPECT_TRUE(status.ok()) << status.what();
  }
  static ArenaFds Duplicate(const ArenaFds& fds) {
    ArenaFds copies;
    for (const int fd : fds.nodes) copies.nodes.push_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    copies.slot_table = ::fcntl(fds.slot_table, F_DUPFD_CLOEXEC, 0);
    return copies;
  }
  // Bytes of memory the memfd holds.
  static uint64_t AllocatedBytes(int fd) {
    struct stat stat {};
    EXPECT_EQ(::fstat(fd, &stat), 0);
    return static_cast<uint64_t>(stat.st_blocks) * 512;
  }
  void ExpectRefused(Arena::Options options, const ArenaFds& fds, const std::string& reason) {
    const auto arena = Arena::AdoptFds(std::move(options), fds, &why_);
    EXPECT_EQ(arena.code(), StatusCode::kInvalid);
    EXPECT_THAT(why_, HasSubstr(reason));
    for (const int fd : fds.nodes) EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "left open";
    EXPECT_EQ(::fcntl(fds.slot_table, F_GETFD), -1) << "left open";
  }

  Reports populated_;
  Reports punched_;
  std::string why_;
};

TEST_F(ArenaTest, CostsNothingBeforeItIsPopulated) {
  const auto arena = Make(Options(4096));  // 8 GiB of address space
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), 0u);
  EXPECT_LE(AllocatedBytes(arena->fds().slot_table), 64 * kKiB);
  EXPECT_FALSE(arena->IsPopulated(0));
}

TEST_F(ArenaTest, PopulatesWhatItIsAskedForAndNothingElse) {
  const auto arena = Make(Options(8));
  const uint64_t table_before_bytes = AllocatedBytes(arena->fds().slot_table);
  Populate(arena.get(), 3);
  EXPECT_TRUE(arena->IsPopulated(3));
  EXPECT_FALSE(arena->IsPopulated(2));
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), kSegmentBytes);
  EXPECT_EQ(AllocatedBytes(arena->fds().slot_table) - table_before_bytes,
            SlotTableBytes(kSegmentBytes, 1));
  std::fill_n(arena->SegmentBase(3), kSegmentBytes, std::byte{7});
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), kSegmentBytes) << "no page was missing";
}

TEST_F(ArenaTest, PunchGivesTheMemoryBackAndKeepsTheSize) {
  const auto arena = Make(Options(4));
  Populate(arena.get(), 1);
  Populate(arena.get(), 2);
  arena->SegmentBase(1)[0] = std::byte{7};
  Punch(arena.get(), 1);
  EXPECT_FALSE(arena->IsPopulated(1));
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), kSegmentBytes);
  struct stat stat {};
  ASSERT_EQ(::fstat(arena->fds().nodes[0], &stat), 0);
  EXPECT_EQ(static_cast<uint64_t>(stat.st_size), 4 * kSegmentBytes);
  Populate(arena.get(), 1);
  EXPECT_EQ(arena->SegmentBase(1)[0], std::byte{0});
}

// PROMISE: T33 seals
TEST_F(ArenaTest, MemfdsAreSealedPrivateAndCloseOnExec) {
  const auto arena = Make(Options(2));
  for (const int fd : {arena->fds().nodes[0], arena->fds().slot_table}) {
    EXPECT_EQ(::fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    struct stat stat {};
    ASSERT_EQ(::fstat(fd, &stat), 0);
    EXPECT_EQ(stat.st_mode & 0777, 0600u);
  }
}

TEST_F(ArenaTest, SegmentsLieInTheMemfdOfTheirNode) {
  const auto arena = Make(Options(5, 2));  // three on the first node, two on the second
  ASSERT_EQ(arena->fds().nodes.size(), 2u);
  EXPECT_EQ(arena->segments_per_node(), 3u);
  Populate(arena.get(), 4);
  arena->SegmentBase(4)[0] = std::byte{42};
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), 0u);
  std::byte seen{};
  ASSERT_EQ(::pread(arena->fds().nodes[1], &seen, 1, kSegmentBytes), 1);
  EXPECT_EQ(seen, std::byte{42});
}

TEST_F(ArenaTest, NoNodeIsLeftWithoutASegment) {
  const auto arena = Make(Options(5, 4));  // 2 + 2 + 1
  EXPECT_EQ(arena->fds().nodes.size(), 3u);
  Populate(arena.get(), 4);
}

TEST_F(ArenaTest, OperationsOnManySegmentsAllReport) {
  const auto arena = Make(Options(16));
  for (uint32_t segment = 0; segment < 16; ++segment) arena->BeginPopulate(segment);
  for (uint32_t i = 0; i < 16; ++i) {
    const auto [segment, status] = populated_.Wait();
    EXPECT_EQ(segment, i);
    EXPECT_TRUE(status.ok());
  }
  for (uint32_t segment = 0; segment < 16; ++segment) arena->BeginPunch(segment);
  for (uint32_t i = 0; i < 16; ++i) EXPECT_TRUE(punched_.Wait().second.ok());
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), 0u);
}

TEST_F(ArenaTest, GoesAwayWithWorkInItsQueue) {
  auto arena = Make(Options(16));
  for (uint32_t segment = 0; segment < 16; ++segment) arena->BeginPopulate(segment);
  arena.reset();
}

TEST_F(ArenaTest, SuccessorFindsSegmentsAndSlotTable) {
  auto arena = Make(Options(5, 2));
  Populate(arena.get(), 0);
  Populate(arena.get(), 4);
  arena->SegmentBase(4)[17] = std::byte{42};
  arena->slot_table()[100] = std::byte{43};
  const ArenaFds fds = Duplicate(arena->fds());
  arena.reset();
  auto adopted = Arena::AdoptFds(Options(5, 2), fds, &why_);
  ASSERT_TRUE(adopted.ok()) << why_;
  Arena& successor = **adopted;
  EXPECT_TRUE(successor.IsPopulated(0));
  EXPECT_FALSE(successor.IsPopulated(1));
  EXPECT_EQ(successor.SegmentBase(4)[17], std::byte{42});
  EXPECT_EQ(successor.slot_table()[100], std::byte{43});
  EXPECT_EQ(successor.backing(), ArenaBacking::kShmem);
  Punch(&successor, 4);
  Populate(&successor, 1);
}

TEST_F(ArenaTest, SuccessorGivesBackWhatWasHalfPopulated) {
  auto arena = Make(Options(2));
  Populate(arena.get(), 1);
  const ArenaFds fds = Duplicate(arena->fds());
  arena.reset();
  // As a kill in the middle of populating leaves it: the mark byte, in the page before the
  // trailer's.
  struct stat stat {};
  ASSERT_EQ(::fstat(fds.slot_table, &stat), 0);
  std::vector<unsigned char> tail(4096);
  ASSERT_EQ(::pread(fds.slot_table, tail.data(), tail.size(), stat.st_size - 8192), 4096);
  const auto mark = std::find(tail.begin(), tail.end(), 2);
  ASSERT_NE(mark, tail.end());
  const unsigned char changing = 1;
  ASSERT_EQ(::pwrite(fds.slot_table, &changing, 1, stat.st_size - 8192 + (mark - tail.begin())), 1);
  auto adopted = Arena::AdoptFds(Options(2), fds, &why_);
  ASSERT_TRUE(adopted.ok()) << why_;
  EXPECT_FALSE((*adopted)->IsPopulated(1));
  EXPECT_EQ(AllocatedBytes((*adopted)->fds().nodes[0]), 0u);
  Populate(adopted->get(), 1);
}

TEST_F(ArenaTest, RefusesFdsThatAreNotItsOwn) {
  const auto arena = Make(Options(4));
  ArenaFds fds = Duplicate(arena->fds());
  fds.nodes.push_back(::fcntl(fds.nodes[0], F_DUPFD_CLOEXEC, 0));
  ExpectRefused(Options(4), fds, "2 memfds were handed over, 1 nodes");
  fds = Duplicate(arena->fds());
  ::close(fds.nodes[0]);
  fds.nodes[0] = ::open("/dev/null", O_RDWR);
  ExpectRefused(Options(4), fds, "memfd 0 is no memfd");
  fds = Duplicate(arena->fds());
  ::close(fds.nodes[0]);
  fds.nodes[0] = ::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(fds.nodes[0], 4 * kSegmentBytes), 0);
  ExpectRefused(Options(4), fds, "memfd 0 can still be resized");
}

TEST_F(ArenaTest, SaysWhichOptionIsNotWhatItWas) {
  const auto arena = Make(Options(4));
  ExpectRefused(Options(5), Duplicate(arena->fds()), "dram_max_bytes was 8388608 and is 10485760");
  ExpectRefused(Options(4, 2), Duplicate(arena->fds()), "NUMA nodes was 1 and is 2");
  // Four segments of 2 MiB and two of 4 MiB have files of the same sizes.
  Arena::Options other = Options(2);
  other.segment_bytes = 2 * kSegmentBytes;
  ExpectRefused(other, Duplicate(arena->fds()), "segment_bytes was 2097152 and is 4194304");
  other = Options(4);
  other.identity = 7;
  ExpectRefused(other, Duplicate(arena->fds()), "secret");
  other = Options(4);
  other.backing = ArenaBackingChoice::kHugetlb;
  ExpectRefused(other, Duplicate(arena->fds()), "its pages are of 4 KiB and hugepages is on");
  ArenaFds fds = Duplicate(arena->fds());
  std::swap(fds.nodes[0], fds.slot_table);
  ExpectRefused(Options(4), fds, "no slot table");
}

TEST_F(ArenaTest, SuccessorKnowsTheSessionsThatStillHoldTheArena) {
  auto arena = Make(Options(1));
  const uint64_t seed = arena->table_seed();
  for (const uint64_t session : {11, 12, 13}) arena->NoteSession(session);
  arena->ForgetSession(12);
  const ArenaFds fds = Duplicate(arena->fds());
  arena.reset();
  auto adopted = Arena::AdoptFds(Options(1), fds, &why_);
  ASSERT_TRUE(adopted.ok()) << why_;
  EXPECT_THAT((*adopted)->NotedSessions(), testing::ElementsAre(11, 13));
  EXPECT_EQ((*adopted)->table_seed(), seed);
  EXPECT_FALSE((*adopted)->has_unnoted_sessions());
  for (uint64_t session = 100; session < 100 + kNotedSessionsMax; ++session) {
    (*adopted)->NoteSession(session);
  }
  EXPECT_TRUE((*adopted)->has_unnoted_sessions());
}

TEST_F(ArenaTest, SaysWhichHugePagesAreMissing) {
  Arena::Options options = Options(4096);
  options.segments_free_min = 4096;
  options.backing = ArenaBackingChoice::kHugetlb;
  const auto arena = Arena::Create(std::move(options), &why_);
  if (arena.ok()) GTEST_SKIP() << "this machine has 4096 free huge pages";
  EXPECT_EQ(arena.code(), StatusCode::kIo);
  EXPECT_THAT(why_, HasSubstr("arena of domain test: no 4096 free huge pages of 2 MiB"));
  EXPECT_THAT(why_, HasSubstr("vm.nr_hugepages"));
}

TEST_F(ArenaTest, AutoFallsBackToSmallPagesAndSaysSo) {
  Arena::Options options = Options(4096);
  options.segments_free_min = 4096;
  options.backing = ArenaBackingChoice::kAuto;
  const auto arena = Make(std::move(options));
  if (arena->backing() == ArenaBacking::kHugetlb) GTEST_SKIP() << "4096 huge pages are free";
  ASSERT_EQ(arena->notes().size(), 1u);
  EXPECT_THAT(arena->notes()[0], HasSubstr("using 4 KiB pages"));
  Populate(arena.get(), 0);
}

// The pool is made smaller, or others take it, before the arena has grown: it is not left without
// any memory, and what it then lacks it is told.
TEST_F(ArenaTest, HasItsFirstHugePagesWhateverOthersTake) {
  test::HugePages pool;
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  Arena::Options options = Options(4);
  options.segments_free_min = 4;
  options.backing = ArenaBackingChoice::kAuto;
  const auto arena = Make(options);
  if (arena->backing() != ArenaBacking::kHugetlb) GTEST_SKIP() << "others have them";
  pool.GiveBack();
  Populate(arena.get(), 0);
  arena->BeginPopulate(1);
  const auto [segment, status] = populated_.Wait();
  if (status.ok()) GTEST_SKIP() << "the machine has huge pages of its own";
  EXPECT_EQ(status.detail(), ENOMEM);
  EXPECT_FALSE(arena->IsPopulated(segment));
}

// Huge pages that are promised and not there: the errno comes back, nobody meets SIGBUS.
TEST_F(ArenaTest, FailedPopulateSaysWhyAndLeavesTheSegmentAbsent) {
  const int fd = ::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (fd < 0) GTEST_SKIP() << "no hugetlb here";
  const uint64_t wanted_bytes = 4096 * kSegmentBytes;
  ASSERT_EQ(::ftruncate(fd, static_cast<off_t>(wanted_bytes)), 0);
  void* reserved = ::mmap(nullptr, wanted_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (reserved != MAP_FAILED) {
    ::munmap(reserved, wanted_bytes);
    ::close(fd);
    GTEST_SKIP() << "4096 huge pages are free";
  }
  ASSERT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  ArenaFds fds = Duplicate(Make(Options(4096))->fds());
  ::close(fds.nodes[0]);
  fds.nodes[0] = fd;
  auto adopted = Arena::AdoptFds(Options(4096), fds, &why_);
  ASSERT_TRUE(adopted.ok()) << why_;
  Status last;
  for (uint32_t segment = 0; segment < 4096 && last.ok(); ++segment) {
    (*adopted)->BeginPopulate(segment);
    const auto [reported, status] = populated_.Wait();
    EXPECT_EQ((*adopted)->IsPopulated(reported), status.ok());
    last = status;
  }
  EXPECT_EQ(last.code(), StatusCode::kIo);
  EXPECT_TRUE(last.detail() == ENOMEM || last.detail() == EFAULT || last.detail() == EHWPOISON)
      << last.detail();
}

TEST_F(ArenaTest, PopulatesNothingThatWouldCallTheOomKiller) {
  Arena::Options options = Options(2);
  std::string pattern = testing::TempDir() + "/arena-XXXXXX";
  options.system_root = ::mkdtemp(pattern.data());
  std::filesystem::create_directories(options.system_root + "/proc");
  std::ofstream(options.system_root + "/proc/meminfo") << "MemAvailable: 60000 kB\n";
  const auto arena = Make(options);
  arena->BeginPopulate(0);
  const auto [segment, status] = populated_.Wait();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.detail(), ENOMEM);
  EXPECT_FALSE(arena->IsPopulated(0));
  EXPECT_EQ(AllocatedBytes(arena->fds().nodes[0]), 0u);
  std::ofstream(options.system_root + "/proc/meminfo") << "MemAvailable: 80000 kB\n";
  Populate(arena.get(), 0);
  std::filesystem::remove_all(options.system_root);
}

TEST_F(ArenaTest, NamesTheFileSizeLimitItMeets) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto arena = Arena::Create(Options(4), &why_);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(arena.code(), StatusCode::kIo);
  EXPECT_EQ(why_,
            "arena of domain test: a memfd of 8 MiB exceeds this process's file size limit "
            "(RLIMIT_FSIZE) of 1 MiB: raise it (LimitFSIZE=infinity, ulimit -f)");
}

TEST_F(ArenaTest, RefusesSizesThatCannotBe) {
  Arena::Options options = Options(0);
  EXPECT_EQ(Arena::Create(options, &why_).code(), StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("segments_max is 0"));
  options = Options(4);
  options.segment_bytes = 3 * kMiB;
  EXPECT_EQ(Arena::Create(options, &why_).code(), StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("segment_bytes is 3145728"));
}

TEST_F(ArenaTest, ForkedChildDoesNotSeeTheArena) {
  const auto arena = Make(Options(1));
  Populate(arena.get(), 0);
  std::byte* base = arena->SegmentBase(0);
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char present = 0;
    ::_exit(::mincore(base, 4096, &present) != 0 && errno == ENOMEM ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace terrace
