// Readers: clients whose user may not store, and what they may try with the memory they are handed:
// the kernel refuses it. What they load is right, from DRAM and from a drive, and after a restart
// in memory that was kept. As another user where the test runs as root; as the daemon's own
// everywhere, whom its memory files' mode cannot keep out, but their descriptors do.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/process/attackers.h"
#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"

namespace terrace::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kBlocks = 24;
constexpr uid_t kReaderUid = 23'003;
constexpr uint16_t kHello = protocol::kHelloReader | protocol::kHelloNotices;

int ErrnoOf(int64_t result) { return result < 0 ? errno : 0; }
// The first that is not `wanted`, else `wanted`.
int All(int wanted, std::initializer_list<int> errors) {
  for (const int error : errors) {
    if (error != wanted) return error;
  }
  return wanted;
}

// ---- the attacks --------------------------------------------------------------------------------

struct Reach {
  int arena = -1;
  uint64_t arena_bytes = 0;
  pid_t daemon = -1;
  pid_t writer = -1;  // a client that may store, of another user than an attacker who is not root
};

void* MapToRead(const Reach& reach) {
  return mmap(nullptr, reach.arena_bytes, PROT_READ, MAP_SHARED, reach.arena, 0);
}
int MapToWrite(const Reach& reach) {
  const auto map = [&](int protection) {
    return mmap(nullptr, reach.arena_bytes, protection, MAP_SHARED, reach.arena, 0) == MAP_FAILED
               ? errno
               : 0;
  };
  return All(EACCES, {map(PROT_READ | PROT_WRITE), map(PROT_WRITE)});
}
int ProtectAnew(const Reach& reach) {
  void* const mapped = MapToRead(reach);
  if (mapped == MAP_FAILED) return 0;
  return ErrnoOf(mprotect(mapped, reach.arena_bytes, PROT_READ | PROT_WRITE));
}
int RemovePages(const Reach& reach) {
  void* const mapped = MapToRead(reach);
  if (mapped == MAP_FAILED) return 0;
  return ErrnoOf(madvise(mapped, reach.arena_bytes, MADV_REMOVE));
}
int WriteToTheFile(const Reach& reach) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0 || write(ends[1], "x", 1) != 1) return 0;
  return All(EBADF, {ErrnoOf(pwrite(reach.arena, "x", 1, 0)),
                     ErrnoOf(splice(ends[0], nullptr, reach.arena, nullptr, 1, 0))});
}
// Where a debugger would write into memory that is mapped to be read.
int WriteByOwnMemory(const Reach& reach) {
  void* const mapped = MapToRead(reach);
  const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  if (mapped == MAP_FAILED || memory < 0) return 0;
  return ErrnoOf(pwrite(memory, "x", 1, static_cast<off_t>(reinterpret_cast<uintptr_t>(mapped))));
}
int CutAndGrow(const Reach& reach) {
  const auto end = static_cast<off_t>(reach.arena_bytes);
  return All(EINVAL,
             {ErrnoOf(ftruncate(reach.arena, 0)), ErrnoOf(ftruncate(reach.arena, 2 * end))});
}
int PunchHoles(const Reach& reach) {
  const auto end = static_cast<off_t>(reach.arena_bytes);
  return All(EBADF,
             {ErrnoOf(fallocate(reach.arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, end)),
              ErrnoOf(fallocate(reach.arena, 0, 0, end))});
}
int AddSeals(const Reach& reach) {
  return All(EPERM, {ErrnoOf(fcntl(reach.arena, F_ADD_SEALS, F_SEAL_WRITE)),
                     ErrnoOf(fcntl(reach.arena, F_ADD_SEALS, F_SEAL_SHRINK))});
}
int OpenAgain(const Reach& reach) {
  const std::string path = "/proc/self/fd/" + std::to_string(reach.arena);
  const auto opened = [&](int flags) { return ErrnoOf(open(path.c_str(), flags | O_CLOEXEC)); };
  return All(EACCES, {opened(O_RDWR), opened(O_WRONLY), opened(O_RDWR | O_TRUNC), opened(O_TRUNC),
                      ErrnoOf(truncate(path.c_str(), 0))});
}
int ChangeTheMode(const Reach& reach) {
  return All(EPERM,
             {ErrnoOf(fchmod(reach.arena, 0666)), ErrnoOf(fchown(reach.arena, getuid(), -1))});
}
int OpenThroughOthers(const Reach& reach) {
  for (const pid_t process : {reach.daemon, reach.writer}) {
    for (int fd = 0; fd < 64; ++fd) {
      const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd);
      if (open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES) return 0;
    }
  }
  return EACCES;
}

enum class Keeps { kEverybody, kOtherUsers };
struct Attack {
  const char* name;
  int (*act)(const Reach&);
  int refused_with;
  Keeps keeps = Keeps::kEverybody;
};
const Attack kAttacks[] = {
    {"MapToWrite", MapToWrite, EACCES},
    {"ProtectAnew", ProtectAnew, EACCES},
    {"RemovePages", RemovePages, EACCES},
    {"WriteToTheFile", WriteToTheFile, EBADF},
    {"WriteByOwnMemory", WriteByOwnMemory, EIO},
    {"CutAndGrow", CutAndGrow, EINVAL},
    {"PunchHoles", PunchHoles, EBADF},
    {"AddSeals", AddSeals, EPERM},
    {"OpenAgain", OpenAgain, EACCES, Keeps::kOtherUsers},
    {"ChangeTheMode", ChangeTheMode, EPERM, Keeps::kOtherUsers},
    {"OpenThroughOthers", OpenThroughOthers, EACCES, Keeps::kOtherUsers},
};

// ---- their stage --------------------------------------------------------------------------------

// What `act` says as that user, in a process of its own. −1: it ended before.
int SaidBy(uid_t uid, const std::function<int()>& act) {
  int said = -1;
  (void)RunAs(
      uid,
      [&act] {
        prctl(PR_SET_DUMPABLE, 1);  // as any program's, which has changed no user
        return act();
      },
      &said);
  return said;
}

struct Visitor {
  std::unique_ptr<Client> client;
  GroupRef group;

  uint32_t Store(const std::vector<BlockKey>& keys) const {
    Result<WriteLease> lease = client->Reserve(group, keys);
    if (!lease.ok()) return 0;
    for (uint32_t k = 0; k < keys.size(); ++k) {
      for (uint32_t part = 0; part < 2 && lease->is_reserved(k); ++part) {
        (void)lease->WritePart(k, 0, part, Bytes(keys[k], part));
      }
    }
    const Result<uint32_t> sealed = client->Commit(*lease);
    return sealed.ok() ? *sealed : 0;
  }
  struct Loaded {
    uint32_t right = 0, wrong = 0;
    protocol::TierKind tier = protocol::TierKind::kHbm;  // of the first block
  };
  Loaded Load(const std::vector<BlockKey>& keys) const {
    Loaded loaded;
    Result<ReadLease> lease = client->Acquire(group, keys);
    if (!lease.ok() || lease->block_count() == 0) return loaded;
    loaded.tier = static_cast<protocol::TierKind>(lease->spans()[0].tier);
    (void)client->WaitReady(*lease, lease->block_count(), kLongUs);
    std::vector<std::byte> bytes(kPartBytes);
    for (uint32_t k = 0; k < lease->ready_count(); ++k) {
      for (uint32_t part = 0; part < 2; ++part) {
        const bool is_right =
            lease->CopyPart(k, 0, part, bytes).ok() && bytes == Bytes(keys[k], part);
        ++(is_right ? loaded.right : loaded.wrong);
      }
    }
    return loaded;
  }
  uint64_t Stat(const char* name) const {
    const Result<std::string> stats = client->Stats();
    return stats.ok() ? nlohmann::json::parse(*stats)["domain"][name].get<uint64_t>() : ~0ull;
  }
};

Visitor Visit(const std::string& socket_path) {
  ClientOptions options;
  options.socket_path = socket_path;
  options.default_deadline_us = kLongUs;
  Visitor visitor;
  Result<std::unique_ptr<Client>> client = Client::Create(options);
  if (!client.ok() || !(*client)->WaitConnected(kLongUs).ok()) return visitor;
  const Result<GroupRef> group = (*client)->Open(Model(), 1);
  if (!group.ok()) return visitor;
  return {.client = std::move(client).value(), .group = *group};
}

class Readers : public testing::Test {
 protected:
  struct Setup {
    std::string hugepages = "off";
    bool has_drive = false;
    bool is_kept = false;
  };
  void Start(const Setup& setup) {
    std::filesystem::permissions(daemon_.directory(), std::filesystem::perms(0755));
    std::string text =
        "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nsegments_spare = 8\n"
        "hugepages = \"" +
        setup.hugepages + "\"\nstate_dir = \"" + daemon_.directory() + "\"\n";
    if (setup.has_drive) {
      text += "[nvme]\npaths = [\"" + daemon_.directory() +
              "/nvme\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"8MiB\"\n";
    }
    text += "[[domain]]\nname = \"default\"\nsocket = \"" + daemon_.socket_path() +
            "\"\nsocket_mode = \"0666\"\nwriter_uids = [" + std::to_string(geteuid()) + "]\n";
    const std::string config = daemon_.WriteFile("t.toml", text);
    daemon_.Start({"--config", config}, {.has_fd_store = setup.is_kept});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
    writer_ = Visit(daemon_.socket_path());
    ASSERT_NE(writer_.client, nullptr);
    EXPECT_FALSE(writer_.client->is_reader());
    for (int i = 0; i < 2'000 && writer_.Stat("segments_populated") < 8; ++i) usleep(5'000);
  }
  // From now on who connects as the daemon's own user is a reader, too; who is connected is not.
  void MakeEverybodyAReader() { Set("domain.default.writer_uids=[]"); }
  void Set(const std::string& text) {
    RawClient admin;
    ASSERT_TRUE(admin.Attach(daemon_.socket_path(), kHello)) << admin.last_text();
    std::vector<std::byte> body(sizeof(protocol::ConfigRequest) + text.size());
    const protocol::ConfigRequest asked{.action = protocol::ConfigAction::kSet};
    std::memcpy(body.data(), &asked, sizeof(asked));
    std::memcpy(body.data() + sizeof(asked), text.data(), text.size());
    const RawReply reply = admin.Call(protocol::kVerbConfig, body);
    ASSERT_EQ(reply.status(), StatusCode::kOk) << reply.text();
  }
  // The users that a test can be: its own, and another where that can be had.
  static std::vector<uid_t> Users(Keeps keeps) {
    std::vector<uid_t> users;
    if (keeps == Keeps::kEverybody) users.push_back(geteuid());
    if (geteuid() == 0) users.push_back(kReaderUid);
    return users;
  }
  int Try(uid_t uid, const Attack& attack) {
    const pid_t daemon = daemon_.pid(), writer = getpid();
    return SaidBy(uid, [&] {
      RawClient client;
      if (!client.Attach(daemon_.socket_path(), kHello)) return EPROTO;
      if (client.received_fds().size() != 3) return EPROTO;
      Reach reach{.arena = client.received_fds()[0], .daemon = daemon, .writer = writer};
      struct stat file {};
      fstat(reach.arena, &file);
      reach.arena_bytes = static_cast<uint64_t>(file.st_size);
      return attack.act(reach);
    });
  }
  // How many parts a reader has right, of as many as there are; less than 0: a wrong one was read,
  // or it is no reader.
  int LoadAs(uid_t uid, const std::vector<BlockKey>& keys, protocol::TierKind tier) {
    return SaidBy(uid, [&] {
      const Visitor reader = Visit(daemon_.socket_path());
      if (reader.client == nullptr || !reader.client->is_reader()) return -2;
      const Visitor::Loaded loaded = reader.Load(keys);
      if (loaded.wrong > 0) return -3;
      return loaded.right > 0 && loaded.tier != tier ? -4 : static_cast<int>(loaded.right);
    });
  }
  void End(int signal, int status) {
    writer_ = {};
    daemon_.Signal(signal);
    ASSERT_EQ(daemon_.Wait(), status) << daemon_.Errors();
  }

  DaemonProcess daemon_;
  Visitor writer_;
};

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

class ReaderAttacks : public Readers, public testing::WithParamInterface<Case> {
 protected:
  HugePages pool_;
};

// PROMISE: T33 eleven attacks of a reader, in small and in huge pages, as root and as another user
// PROMISE: T32 what a reader tries is refused, and nothing of what others stored is changed
TEST_P(ReaderAttacks, IsRefused) {
  const Attack& attack = GetParam().attack;
  if (GetParam().is_huge && !pool_.Take(64)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  const std::vector<uid_t> users = Users(attack.keeps);
  if (users.empty()) GTEST_SKIP() << "root only: it becomes another user";
  ASSERT_NO_FATAL_FAILURE(Start({.hugepages = GetParam().is_huge ? "on" : "off"}));
  const std::vector<BlockKey> keys = Keys(kBlocks);
  ASSERT_EQ(writer_.Store(keys), kBlocks);
  MakeEverybodyAReader();
  for (const uid_t uid : users) {
    SCOPED_TRACE("as user " + std::to_string(uid));
    const int refused_with = Try(uid, attack);
    EXPECT_EQ(refused_with, attack.refused_with) << std::strerror(refused_with);
    EXPECT_EQ(LoadAs(uid, keys, protocol::TierKind::kDram), static_cast<int>(2 * kBlocks));
  }
  EXPECT_EQ(writer_.Stat("blocks_corrupt"), 0u);
  EXPECT_EQ(writer_.Store(Keys(kBlocks, 8)), kBlocks) << "who was a writer goes on";
}
INSTANTIATE_TEST_SUITE_P(OneBy, ReaderAttacks, testing::ValuesIn(Cases()), NameOf);

// What a reader may not is refused in words; what it may works. 0, or the step that was wrong.
int UseAsReader(const std::string& socket_path, bool is_admin, const std::vector<BlockKey>& keys) {
  const Visitor reader = Visit(socket_path);
  if (reader.client == nullptr || !reader.client->is_reader()) return 1;
  const std::vector<BlockKey> new_keys = Keys(2, 99);
  const auto is_refused = [&](Status status) {
    const std::string why = reader.client->last_error();
    return status.code() == StatusCode::kUnsupported &&
           why.find("uid " + std::to_string(geteuid()) + " is a reader") != std::string::npos &&
           why.find("writer_uids") != std::string::npos;
  };
  if (!is_refused(reader.client->Reserve(reader.group, new_keys).status())) return 2;
  const auto evicted = reader.client->Evict(reader.group, {keys.data(), 1});
  if (is_admin ? !evicted.ok() : !is_refused(evicted.status())) return 3;
  const auto pinned =
      reader.client->Pin(reader.group, {keys.data() + 2, 1}, {.hints = {.ttl_s = 60}});
  if (is_admin ? !pinned.ok() : !is_refused(pinned.status())) return 4;
  if (!is_admin && !is_refused(reader.client->Reset(reader.group))) return 5;
  const RequestOptions ending{.hints = {.ttl_s = 1}};
  if (!is_admin && !is_refused(reader.client->Touch(reader.group, keys, ending))) return 6;
  const std::vector<BlockKey> rest(keys.begin() + (is_admin ? 1 : 0), keys.end());
  const RequestOptions flat{.flags = protocol::kKeysFlat};
  if (!reader.client->Touch(reader.group, rest, flat).ok()) return 7;
  const auto matched = reader.client->Match(reader.group, rest, flat);
  if (!matched.ok() || matched->block_count != rest.size()) return 8;
  const auto fetched = reader.client->Prefetch(reader.group, rest, flat);
  if (!fetched.ok() || *fetched != rest.size()) return 9;
  std::vector<protocol::QueriedBlock> known;
  if (!reader.client->Query(reader.group, rest, &known, flat).ok()) return 10;
  return known.size() == rest.size() ? 0 : 11;
}

TEST_F(Readers, StoreNothingAndAskEverything) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const std::vector<BlockKey> keys = Keys(kBlocks);
  ASSERT_EQ(writer_.Store(keys), kBlocks);
  MakeEverybodyAReader();
  if (geteuid() == 0) {
    EXPECT_EQ(SaidBy(kReaderUid, [&] { return UseAsReader(daemon_.socket_path(), false, keys); }),
              0);
    EXPECT_EQ(writer_.Stat("block_count"), kBlocks);
  }
  EXPECT_EQ(SaidBy(geteuid(), [&] { return UseAsReader(daemon_.socket_path(), true, keys); }), 0)
      << "the daemon's own user rules, though it does not store";
  EXPECT_EQ(writer_.Stat("reserved_count"), 0u);
}

// PROMISE: T32 a reader has what is right, from DRAM, from a drive, and in memory that was kept
TEST_F(Readers, LoadWhatIsRightFromDramAndFromADrive) {
  ASSERT_NO_FATAL_FAILURE(Start({.has_drive = true}));
  const std::vector<BlockKey> keys = Keys(kBlocks);
  ASSERT_EQ(writer_.Store(keys), kBlocks);
  ASSERT_TRUE(writer_.client->WaitPersisted(writer_.group, keys).ok());
  MakeEverybodyAReader();
  const uid_t uid = geteuid() == 0 ? kReaderUid : geteuid();
  EXPECT_EQ(LoadAs(uid, keys, protocol::TierKind::kDram), static_cast<int>(2 * kBlocks));
  ASSERT_NO_FATAL_FAILURE(End(SIGKILL, 128 + SIGKILL));
  ASSERT_NO_FATAL_FAILURE(Start({.has_drive = true}));
  MakeEverybodyAReader();
  EXPECT_EQ(LoadAs(uid, keys, protocol::TierKind::kNvme), static_cast<int>(2 * kBlocks));
  EXPECT_EQ(LoadAs(uid, keys, protocol::TierKind::kDram), static_cast<int>(2 * kBlocks));
}

TEST_F(Readers, LoadWhatWasKeptAndCannotWriteThereEither) {
  ASSERT_NO_FATAL_FAILURE(Start({.is_kept = true}));
  const std::vector<BlockKey> keys = Keys(kBlocks);
  ASSERT_EQ(writer_.Store(keys), kBlocks);
  ASSERT_NO_FATAL_FAILURE(End(SIGKILL, 128 + SIGKILL));
  ASSERT_NO_FATAL_FAILURE(Start({.is_kept = true}));
  MakeEverybodyAReader();
  for (const uid_t uid : Users(Keeps::kEverybody)) {
    EXPECT_EQ(LoadAs(uid, keys, protocol::TierKind::kDram), static_cast<int>(2 * kBlocks));
    for (const Attack& attack : kAttacks) {
      if (uid == geteuid() && attack.keeps != Keeps::kEverybody) continue;
      EXPECT_EQ(Try(uid, attack), attack.refused_with) << attack.name << " as user " << uid;
    }
  }
}

TEST_F(Readers, AreToldAtTheirNextConnection) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const auto is_reader = [&] {
    const Visitor visitor = Visit(daemon_.socket_path());
    return visitor.client != nullptr && visitor.client->is_reader();
  };
  EXPECT_FALSE(is_reader());
  MakeEverybodyAReader();
  EXPECT_TRUE(is_reader());
  EXPECT_EQ(writer_.Store(Keys(2)), 2u) << "it has the memory already";
  const Result<std::string> stats = writer_.client->Stats();
  ASSERT_TRUE(stats.ok());
  const nlohmann::json document = nlohmann::json::parse(*stats);
  for (const auto& session : document["sessions"]) {
    EXPECT_TRUE(session["is_hung_up"] || !session["is_reader"]) << session;
  }
  Set("domain.default.writer_uids=[" + std::to_string(geteuid()) + "]");
  EXPECT_FALSE(is_reader());
}

// Its library would map the arena to write, and fail at each lease.
TEST_F(Readers, OfAnOlderLibraryAreRefusedInWords) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  RawClient before;
  EXPECT_TRUE(before.Attach(daemon_.socket_path())) << "a writer of an older library is served";
  MakeEverybodyAReader();
  RawClient old;
  EXPECT_FALSE(old.Attach(daemon_.socket_path(), protocol::kHelloNotices));
  EXPECT_THAT(old.last_text(), AllOf(HasSubstr("is a reader"), HasSubstr("writer_uids"),
                                     HasSubstr("update libterrace")));
  EXPECT_TRUE(old.received_fds().empty());
}

// Slabs of an HBM tier are there to be written, and so is what a writer shares a lease of.
TEST_F(Readers, GetNoMemoryOfADeviceAndNoPartInAStore) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  Result<WriteLease> lease = writer_.client->Reserve(writer_.group, Keys(2));
  ASSERT_TRUE(lease.ok());
  MakeEverybodyAReader();
  RawClient reader;
  ASSERT_TRUE(reader.Attach(daemon_.socket_path(), kHello));
  const int flags = fcntl(reader.received_fds()[0], F_GETFL);
  EXPECT_EQ(flags & O_ACCMODE, O_RDONLY);
  const RawReply device =
      reader.Call(protocol::kVerbDeviceAttach, BytesOf(protocol::DeviceAttachRequest{}));
  EXPECT_EQ(device.status(), StatusCode::kUnsupported);
  EXPECT_THAT(device.text(), HasSubstr("DeviceAttach is for writers"));
  const Visitor visitor = Visit(daemon_.socket_path());
  ASSERT_NE(visitor.client, nullptr);
  const Result<WriteLease> joined = visitor.client->JoinWrite(visitor.group, lease->token(), 1);
  EXPECT_EQ(joined.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(visitor.client->last_error(), HasSubstr("Join of a write lease is for writers"));
}

}  // namespace
}  // namespace terrace::test
