// What can be done to the memory files that a client is handed, one attack after the other: each is
// refused with its errno, or survived. Survived is: the daemon goes on, another domain's blocks are
// right and all there, what was spoilt is a miss to another user and counted, and nothing of the
// attacker's is held any more.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "integration/process/attackers.h"
#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"
#include "small_space.h"
#include "terrace/client.h"
#include "terrace/notice_page.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint32_t kVictims = 100;  // blocks of the attacked domain, a round
constexpr uint32_t kChanged = 500;  // the same, where each of them is changed by its writer
constexpr uint32_t kBystanders = 2'000;
constexpr uint32_t kKeysPerCall = 500;
constexpr uid_t kAttackerUid = 23'001, kReaderUid = 23'002;
constexpr int kGrowBytes = 2 << 20;

std::vector<BlockKey> KeysOf(uint32_t count, uint64_t prompt) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = i + 1, .high = prompt});
  return keys;
}

std::vector<std::byte> BytesFor(const BlockKey& key) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte((i * 31 + i / 256 + key.low * 7 + key.high * 5 + 1) & 255);
  }
  return bytes;
}

SpaceGroupSpec Spec() { return {.name = "g", .members = {{.spec = SmallSpace({kBlockBytes})}}}; }

// A Client with its group; no test goes on without.
struct Connected {
  std::unique_ptr<Client> client;
  GroupRef group;
};
Connected Connect(const std::string& socket_path) {
  ClientOptions options;
  options.socket_path = socket_path;
  options.default_deadline_us = kLongUs;
  Connected connected;
  Result<std::unique_ptr<Client>> client = Client::Create(options);
  if (!client.ok() || !(*client)->WaitConnected(kLongUs).ok()) return connected;
  const Result<GroupRef> group = (*client)->Open(Spec(), 1);
  if (!group.ok()) return connected;
  return {.client = std::move(client).value(), .group = *group};
}

// How many of the keys were stored.
uint32_t StoreAll(Connected& by, const std::vector<BlockKey>& keys) {
  uint32_t sealed_count = 0;
  for (size_t at = 0; at < keys.size(); at += kKeysPerCall) {
    const size_t count = std::min<size_t>(kKeysPerCall, keys.size() - at);
    Result<WriteLease> lease = by.client->Reserve(by.group, {keys.data() + at, count});
    if (!lease.ok()) return sealed_count;
    for (uint32_t i = 0; i < count; ++i) {
      if (lease->is_reserved(i)) (void)lease->WritePart(i, 0, 0, BytesFor(keys[at + i]));
    }
    const Result<uint32_t> sealed = by.client->Commit(*lease);
    if (sealed.ok()) sealed_count += *sealed;
  }
  return sealed_count;
}

struct Seen {
  uint32_t right = 0, wrong = 0, missed = 0;
};
// One block at a time: a block that is missing hides none behind it.
Seen LookAt(Connected& by, const std::vector<BlockKey>& keys) {
  Seen seen;
  std::vector<std::byte> read(kBlockBytes);
  for (const BlockKey& key : keys) {
    Result<ReadLease> lease = by.client->Acquire(by.group, {&key, 1});
    const bool is_hit = lease.ok() && lease->block_count() == 1 &&
                        by.client->WaitReady(*lease, 1, kLongUs).ok() &&
                        lease->CopyPart(0, 0, 0, read).ok();
    ++(!is_hit ? seen.missed : read == BytesFor(key) ? seen.right : seen.wrong);
  }
  return seen;
}

// ---- the attacks --------------------------------------------------------------------------------

// What an attacker holds or knows.
struct Reach {
  std::string socket_path;
  int arena = -1;
  int notices = -1;
  uint64_t arena_bytes = 0;
  uint32_t group = 0;  // its handle
  RawClient* client = nullptr;
  std::vector<BlockKey> keys;  // of its own, unused yet
  pid_t victim = -1;           // a client of the domain, of another user
  pid_t daemon = -1;
};

int ErrnoOf(int64_t result) { return result < 0 ? errno : 0; }
// The first that is not `wanted`, else `wanted`.
int All(int wanted, std::initializer_list<int> errors) {
  for (const int error : errors) {
    if (error != wanted) return error;
  }
  return wanted;
}

void* MapFile(int fd, uint64_t length_bytes, int protection) {
  return mmap(nullptr, length_bytes, protection, MAP_SHARED, fd, 0);
}
int MapToWrite(int fd, uint64_t length_bytes) {
  return MapFile(fd, length_bytes, PROT_READ | PROT_WRITE) == MAP_FAILED ? errno : 0;
}

int CutShorter(const Reach& reach) {
  return All(EPERM, {ErrnoOf(ftruncate(reach.arena, 0)),
                     ErrnoOf(ftruncate(reach.arena, reach.arena_bytes - kGrowBytes)),
                     ErrnoOf(ftruncate(reach.notices, 0))});
}
int MakeLonger(const Reach& reach) {
  const auto end = static_cast<off_t>(reach.arena_bytes);
  return All(EPERM, {ErrnoOf(ftruncate(reach.arena, end + kGrowBytes)),
                     ErrnoOf(fallocate(reach.arena, 0, end, kGrowBytes)),
                     ErrnoOf(ftruncate(reach.notices, 2 * kNoticePageBytes))});
}
int PunchHoles(const Reach& reach) {
  return ErrnoOf(fallocate(reach.arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                           static_cast<off_t>(reach.arena_bytes)));
}
int RemovePages(const Reach& reach) {
  void* const mapped = MapFile(reach.arena, reach.arena_bytes, PROT_READ | PROT_WRITE);
  if (mapped == MAP_FAILED) return errno;
  return ErrnoOf(madvise(mapped, reach.arena_bytes, MADV_REMOVE));
}
// The page of notices is the file that clients are handed to read.
int MapNoticesToWrite(const Reach& reach) {
  return All(EPERM, {MapToWrite(reach.notices, kNoticePageBytes),
                     ErrnoOf(pwrite(reach.notices, "x", 1, 0)),
                     ErrnoOf(fallocate(reach.notices, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                       kNoticePageBytes))});
}
int ProtectAnew(const Reach& reach) {
  void* const mapped = MapFile(reach.notices, kNoticePageBytes, PROT_READ);
  if (mapped == MAP_FAILED) return 0;
  return ErrnoOf(mprotect(mapped, kNoticePageBytes, PROT_READ | PROT_WRITE));
}
int OpenAgain(const Reach& reach) {
  const auto path = [](int fd) { return "/proc/self/fd/" + std::to_string(fd); };
  const int again = open(path(reach.notices).c_str(), O_RDWR | O_CLOEXEC);
  const int cut = open(path(reach.arena).c_str(), O_RDWR | O_TRUNC | O_CLOEXEC);
  // The page is its owner's alone to open: a memfd is everybody's else.
  struct stat page {};
  const bool is_closed = fstat(reach.notices, &page) == 0 && (page.st_mode & 0777) == 0600;
  if (!is_closed || (geteuid() != page.st_uid && geteuid() != 0 && again >= 0)) return 0;
  if (again < 0) return cut < 0 ? EPERM : 0;
  return All(EPERM, {ErrnoOf(pwrite(again, "x", 1, 0)), MapToWrite(again, kNoticePageBytes),
                     ErrnoOf(ftruncate(again, 0)), cut < 0 ? EPERM : 0});
}
int AddSeals(const Reach& reach) {
  const auto seal = [](int fd, int seals) { return ErrnoOf(fcntl(fd, F_ADD_SEALS, seals)); };
  return All(EPERM, {seal(reach.arena, F_SEAL_WRITE), seal(reach.arena, F_SEAL_FUTURE_WRITE),
                     seal(reach.arena, F_SEAL_SHRINK), seal(reach.notices, F_SEAL_WRITE)});
}
// The offset, the flags and the lock belong to the open file, which all who hold it share.
int ChangeTheOpenFile(const Reach& reach) {
  (void)lseek(reach.arena, 12'345, SEEK_SET);
  (void)fcntl(reach.arena, F_SETFL, O_APPEND | O_NONBLOCK);
  return ErrnoOf(flock(reach.arena, LOCK_EX | LOCK_NB));
}
// Through others' descriptors and memory, as a user who is neither theirs nor root.
int OpenOthersFiles(const Reach& reach) {
  for (const pid_t process : {reach.victim, reach.daemon}) {
    const std::string of = "/proc/" + std::to_string(process);
    for (int fd = 0; fd < 64; ++fd) {
      const std::string path = of + "/fd/" + std::to_string(fd);
      if (open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES) return 0;
    }
    for (const char* file : {"/mem", "/map_files", "/maps"}) {
      const int opened = open((of + file).c_str(), O_RDONLY | O_CLOEXEC);
      char byte;
      if (opened >= 0 && read(opened, &byte, 1) == 1) return 0;
    }
    char byte;
    iovec here{&byte, 1}, there{environ, 1};  // the victim has these at the same address
    if (process_vm_readv(process, &here, 1, &there, 1, 0) >= 0 || errno != EPERM) return 0;
  }
  return EACCES;
}
// Its own block, whose checksum fits what was there at the commit.
int WriteAfterCommit(const Reach& reach) {
  Connected own = Connect(reach.socket_path);
  Result<WriteLease> lease = own.client->Reserve(own.group, reach.keys);
  if (!lease.ok()) return EPROTO;
  std::vector<std::span<std::byte>> slots;
  for (uint32_t i = 0; i < reach.keys.size(); ++i) {
    slots.push_back(lease->slot(i, 0));
    if (!lease->WritePart(i, 0, 0, BytesFor(reach.keys[i])).ok()) return EPROTO;
  }
  const Result<uint32_t> sealed = own.client->Commit(*lease);
  if (!sealed.ok() || *sealed != reach.keys.size()) return EPROTO;
  for (const std::span<std::byte> slot : slots) slot[kBlockBytes / 2] ^= std::byte{1};
  return 0;
}
// With no lease left, all over the arena: others' blocks too.
int WriteAfterRelease(const Reach& reach) {
  if (Store(*reach.client, reach.group, reach.keys).sealed_count == 0) return EPROTO;
  auto* const mapped =
      static_cast<std::byte*>(MapFile(reach.arena, reach.arena_bytes, PROT_READ | PROT_WRITE));
  if (mapped == MAP_FAILED) return errno;
  // What is populated: holes stay holes, or the attack would be one on the machine's memory.
  off_t from = 0;
  while ((from = lseek(reach.arena, from, SEEK_DATA)) >= 0) {
    const off_t to = lseek(reach.arena, from, SEEK_HOLE);
    std::memset(mapped + from, 0xEE, static_cast<size_t>(to - from));
    from = to;
  }
  return 0;
}
// One thread fills reserved slots, another takes their memory away.
int UnmapInMidCopy(const Reach& reach) {
  if (reach.client->CallKeys(protocol::Verb::kReserve, reach.group, reach.keys).status() !=
      StatusCode::kOk) {
    return EPROTO;
  }
  signal(SIGSEGV, SIG_DFL);  // of sanitizers, too
  void* const mapped = MapFile(reach.arena, kGrowBytes, PROT_READ | PROT_WRITE);
  if (mapped == MAP_FAILED) return errno;
  std::atomic<bool> is_writing = false;
  std::thread writer([&] {
    volatile char* const at = static_cast<char*>(mapped);
    for (int i = 0;; i = (i + 64) % kGrowBytes) {
      at[i] = at[i];
      is_writing = true;
    }
  });
  while (!is_writing) std::this_thread::yield();
  munmap(mapped, kGrowBytes);
  writer.join();
  return EPROTO;
}

enum class Costs { kNothing, kBlocks, kTheAttacker };
struct Attack {
  const char* name;
  int (*act)(const Reach&);
  int refused_with;  // 0: nothing refuses it
  Costs costs = Costs::kNothing;
  bool binds_root = true;
};
const Attack kAttacks[] = {
    {"CutShorter", CutShorter, EPERM},
    {"MakeLonger", MakeLonger, EPERM},
    {"PunchHoles", PunchHoles, 0, Costs::kBlocks},
    {"RemovePages", RemovePages, 0, Costs::kBlocks},
    {"MapNoticesToWrite", MapNoticesToWrite, EPERM},
    {"ProtectAnew", ProtectAnew, EACCES},
    {"OpenAgain", OpenAgain, EPERM},
    {"OpenOthersFiles", OpenOthersFiles, EACCES, Costs::kNothing, false},
    {"AddSeals", AddSeals, EPERM},
    {"ChangeTheOpenFile", ChangeTheOpenFile, 0},
    {"WriteAfterCommit", WriteAfterCommit, 0, Costs::kBlocks},
    {"WriteAfterRelease", WriteAfterRelease, 0, Costs::kBlocks},
    {"UnmapInMidCopy", UnmapInMidCopy, 0, Costs::kTheAttacker},
};

// ---- their stage --------------------------------------------------------------------------------

struct Case {
  Attack attack;
  bool is_huge = false;
};
std::string NameOf(const testing::TestParamInfo<Case>& tried) {
  return std::string(tried.param.attack.name) + (tried.param.is_huge ? "Huge" : "");
}
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool is_huge : {false, true}) {
    for (const Attack& attack : kAttacks) cases.push_back({attack, is_huge});
  }
  return cases;
}

class MemoryAttacks : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().is_huge && !pool_.Take(160)) {
      GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
    }
    std::filesystem::permissions(daemon_.directory(), std::filesystem::perms(0755));
    const std::string open_to_all = "\"\nsocket_mode = \"0666\"\n";
    const std::string config = daemon_.WriteFile(
        "t.toml", std::string("[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"64MiB\"\n") +
                      "hugepages = \"" + (GetParam().is_huge ? "on" : "off") +
                      "\"\nstate_dir = \"" + daemon_.directory() +
                      "\"\n[[domain]]\nname = \"attacked\"\nsocket = \"" + daemon_.socket_path() +
                      open_to_all + "[[domain]]\nname = \"other\"\nsocket = \"" +
                      daemon_.directory() + "/other.sock" + open_to_all);
    daemon_.Start({"--config", config});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
    victim_ = Connect(daemon_.socket_path());
    bystander_ = Connect(daemon_.directory() + "/other.sock");
    ASSERT_TRUE(victim_.client != nullptr && bystander_.client != nullptr);
    ASSERT_EQ(StoreAll(bystander_, KeysOf(kBystanders, 1)), kBystanders);
  }

  uint64_t Stat(const char* name) {
    const Result<std::string> stats = victim_.client->Stats();
    return stats.ok() ? nlohmann::json::parse(*stats)["domain"][name].get<uint64_t>() : ~0ull;
  }
  bool EventuallyZero(const char* name) {
    for (int i = 0; i < 2'000 && Stat(name) != 0; ++i) usleep(5'000);
    return Stat(name) == 0;
  }
  // What a user who is neither the victim nor the attacker sees.
  Seen AsReader(const std::vector<BlockKey>& keys) {
    const uid_t uid = geteuid() == 0 ? kReaderUid : geteuid();
    int said = -1;
    (void)RunAs(
        uid,
        [&] {
          Connected reader = Connect(daemon_.socket_path());
          const Seen seen = LookAt(reader, keys);
          return static_cast<int>(seen.wrong << 16 | seen.right);
        },
        &said);
    EXPECT_GE(said, 0) << "the reader ended";
    Seen seen{.right = static_cast<uint32_t>(said) & 0xFFFF,
              .wrong = static_cast<uint32_t>(said) >> 16};
    seen.missed = static_cast<uint32_t>(keys.size()) - seen.right - seen.wrong;
    return seen;
  }
  // The wait status of the attacker, and what it was told.
  int Try(uid_t uid, const std::vector<BlockKey>& keys, int* refused_with) {
    const Attack& attack = GetParam().attack;
    Reach reach{.socket_path = daemon_.socket_path(), .keys = keys};
    reach.victim = getpid();
    reach.daemon = daemon_.pid();
    return RunAs(
        uid,
        [&] {
          RawClient client;
          if (!client.Attach(reach.socket_path, protocol::kHelloNotices)) return EPROTO;
          if (client.received_fds().size() != 3) return EPROTO;
          reach.client = &client;
          reach.arena = client.received_fds()[0];
          reach.notices = client.received_fds()[2];
          struct stat file {};
          fstat(reach.arena, &file);
          reach.arena_bytes = static_cast<uint64_t>(file.st_size);
          reach.group = client.Open("g", kBlockBytes);
          return attack.act(reach);
        },
        refused_with);
  }

  HugePages pool_;
  DaemonProcess daemon_;
  Connected victim_, bystander_;
};

// PROMISE: T33 every attack, in small and in huge pages, as root and as another user
// PROMISE: T32 bytes that are changed after their commit or by who has no lease
TEST_P(MemoryAttacks, IsRefusedOrSurvived) {
  const Attack& attack = GetParam().attack;
  uint64_t prompt = 10;
  const bool needs_another = attack.costs == Costs::kBlocks || attack.act == OpenOthersFiles;
  if (needs_another && geteuid() != 0) GTEST_SKIP() << "root only: it becomes another user";
  std::vector<uid_t> users = {geteuid()};
  if (geteuid() == 0) users.push_back(kAttackerUid);
  for (const uid_t uid : users) {
    if (uid == 0 && !attack.binds_root) continue;
    SCOPED_TRACE("as user " + std::to_string(uid));
    const uint64_t corrupt_before = Stat("blocks_corrupt");
    std::vector<BlockKey> looked_at = KeysOf(kVictims, ++prompt);
    const bool is_own = attack.act == WriteAfterCommit;
    const std::vector<BlockKey> own = KeysOf(is_own ? kChanged : kVictims, ++prompt);
    ASSERT_EQ(StoreAll(victim_, looked_at), kVictims);
    if (is_own) looked_at = own;
    int refused_with = -1;
    const int status = Try(uid, own, &refused_with);
    if (!pool_.AreThere()) GTEST_SKIP() << "somebody else has set vm.nr_hugepages meanwhile";
    if (attack.costs == Costs::kTheAttacker) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
    } else {
      EXPECT_EQ(status, 0);
      EXPECT_EQ(refused_with, attack.refused_with) << std::strerror(refused_with);
    }
    const Seen seen = AsReader(looked_at);
    EXPECT_EQ(seen.wrong, 0u) << "another user never reads what was spoilt";
    EXPECT_EQ(seen.missed, attack.costs == Costs::kBlocks ? looked_at.size() : 0u);
    EXPECT_EQ(Stat("blocks_corrupt") - corrupt_before, seen.missed) << "and it is counted";
    // The domain goes on, in the same memory.
    const std::vector<BlockKey> later = KeysOf(kVictims, ++prompt);
    EXPECT_EQ(StoreAll(victim_, later), kVictims);
    EXPECT_EQ(AsReader(later).right, kVictims);
    for (const char* held : {"lease_count", "reserved_count", "fenced_bytes"}) {
      EXPECT_TRUE(EventuallyZero(held)) << held;
    }
    EXPECT_EQ(LookAt(bystander_, KeysOf(kBystanders, 1)).right, kBystanders);
  }
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0) << daemon_.Errors();
}
INSTANTIATE_TEST_SUITE_P(OneBy, MemoryAttacks, testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace terrace::test
