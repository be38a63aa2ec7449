// Draining and bypassing a domain of a real terraced, with engines' processes at work in it.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <new>
#include <thread>

#include "integration/process/cli/cli_fixture.h"
#include "integration/process/raw_client.h"
#include "redis/redis_process.h"
#include "small_space.h"
#include "terrace/client.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kEngines = 4;
constexpr uint32_t kBlocks = 4;
constexpr uint64_t kPartBytes = 4096;
constexpr uint64_t kRoundsMeasured = 2000;

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 6'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

SpaceGroupSpec Model() {
  return {.name = "tiny", .members = {{.spec = test::SmallSpace({kPartBytes}, "tiny", "r1")}}};
}

std::vector<BlockKey> Keys(uint64_t prompt) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < kBlocks; ++i) keys.push_back({.low = i + 1, .high = prompt});
  return keys;
}

// What an engine's process says of itself, in memory that the test shares with it.
struct EngineSigns {
  std::atomic<uint64_t> rounds{0};
  std::atomic<uint64_t> hits{0};      // rounds whose prefix was there
  std::atomic<uint64_t> stores{0};    // blocks that became visible
  std::atomic<uint64_t> bypassed{0};  // as the client counts
  std::atomic<uint32_t> failed{0};    // the status of a call that was not kOk; 0: none was
  std::atomic<uint32_t> is_stopped{0};
  // Of the last rounds, to be read between them.
  std::array<std::atomic<uint32_t>, kRoundsMeasured> round_us{};
};

// Looks up a prompt it knows and stores one that nobody has, again and again.
int RunEngine(const std::string& socket_path, uint64_t number, EngineSigns& signs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ClientOptions options;
  options.socket_path = socket_path;
  options.default_deadline_us = kLongUs;
  auto client = Client::Create(options);
  if (!client.ok() || !(*client)->WaitConnected(kLongUs).ok()) return 2;
  const auto group = (*client)->Open(Model(), 1);
  if (!group.ok()) return 3;
  const std::vector<std::byte> part(kPartBytes, std::byte{7});
  const auto note = [&signs](const Status& status) {
    if (!status.ok()) signs.failed = static_cast<uint32_t>(status.code());
  };
  const auto store = [&](uint64_t prompt) {
    auto lease = (*client)->Reserve(*group, Keys(prompt));
    note(lease.ok() ? Status::Ok() : lease.status());
    if (!lease.ok()) return;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      if (lease->is_reserved(i)) note(lease->WritePart(i, 0, 0, part));
    }
    const auto sealed = (*client)->Commit(*lease);
    note(sealed.ok() ? Status::Ok() : sealed.status());
    if (sealed.ok()) signs.stores += *sealed;
  };
  for (uint64_t round = 0; signs.is_stopped == 0; ++round) {
    const auto began = std::chrono::steady_clock::now();
    store(number << 32 | round % 64);
    const auto lease = (*client)->Acquire(*group, Keys(number << 32 | round % 64));
    note(lease.ok() ? Status::Ok() : lease.status());
    if (lease.ok() && lease->block_count() == kBlocks) ++signs.hits;
    const auto took = std::chrono::steady_clock::now() - began;
    signs.round_us[round % kRoundsMeasured] =
        static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
    signs.bypassed = (*client)->bypassed_count();
    ++signs.rounds;
  }
  return signs.failed == 0 ? 0 : 1;
}

class Drain : public CliTest {
 protected:
  ~Drain() override {
    for (EngineSigns* signs : signs_) signs->is_stopped = 1;
    for (const pid_t pid : engines_) waitpid(pid, nullptr, 0);
    for (EngineSigns* signs : signs_) munmap(signs, sizeof(*signs));
  }
  void StartEngines(uint32_t count) {
    for (uint64_t number = 1; number <= count; ++number) {
      void* const shared = mmap(nullptr, sizeof(EngineSigns), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(shared, MAP_FAILED);
      EngineSigns* const signs = new (shared) EngineSigns();
      const pid_t pid = fork();
      if (pid == 0) _exit(RunEngine(socket_path(), number, *signs));
      signs_.push_back(signs);
      engines_.push_back(pid);
    }
  }
  // Each engine has begun and ended so many more rounds.
  bool GoOn(uint64_t rounds) {
    std::vector<uint64_t> until;
    for (const EngineSigns* signs : signs_) until.push_back(signs->rounds + rounds + 1);
    return Eventually([&] {
      for (size_t i = 0; i < signs_.size(); ++i) {
        if (signs_[i]->rounds < until[i]) return false;
      }
      return true;
    });
  }
  uint64_t Sum(std::atomic<uint64_t> EngineSigns::*count) const {
    uint64_t sum = 0;
    for (const EngineSigns* signs : signs_) sum += signs->*count;
    return sum;
  }
  void ExpectNoneFailed() const {
    for (const EngineSigns* signs : signs_) {
      EXPECT_EQ(signs->failed, 0u) << StatusCodeName(static_cast<StatusCode>(signs->failed.load()));
    }
  }
  uint32_t Round99PercentUs() const {
    std::vector<uint32_t> all;
    for (const EngineSigns* signs : signs_) {
      for (const auto& round_us : signs->round_us) all.push_back(round_us);
    }
    const auto at = all.begin() + static_cast<ptrdiff_t>(all.size() * 99 / 100);
    std::nth_element(all.begin(), at, all.end());
    return *at;
  }
  // What came to the daemon of lookups and stores.
  uint64_t ServedAndNot() const {
    const json domain = TerraceJson({"status"})["domain"];
    return domain["acquire_requests"].get<uint64_t>() +
           domain["requests_unserved"].get<uint64_t>() + domain["blocks_sealed"].get<uint64_t>();
  }

  std::vector<EngineSigns*> signs_;
  std::vector<pid_t> engines_;
};

TEST_F(Drain, BypassedEnginesGoOnWithoutTheDaemonAndComeBack) {
  StartDaemon();
  StartEngines(kEngines);
  ASSERT_TRUE(GoOn(kRoundsMeasured));
  EXPECT_GT(Sum(&EngineSigns::hits), 0u);
  const uint32_t before_us = Round99PercentUs();

  const json bypassed = TerraceJson({"drain", "--bypass", "--wait", "30"});
  EXPECT_EQ(bypassed["mode"], "bypassed");
  EXPECT_EQ(bypassed["is_kept"], true);
  EXPECT_EQ(bypassed["by_uid"], getuid());
  EXPECT_EQ(bypassed["is_done"], true);
  ASSERT_TRUE(GoOn(1)) << "each one's next call";
  const uint64_t came = ServedAndNot();
  const uint64_t hits = Sum(&EngineSigns::hits);
  const uint64_t stores = Sum(&EngineSigns::stores);
  const uint64_t answered = Sum(&EngineSigns::bypassed);
  ASSERT_TRUE(GoOn(kRoundsMeasured));
  EXPECT_EQ(ServedAndNot(), came) << "no request reaches the daemon";
  EXPECT_EQ(Sum(&EngineSigns::hits), hits);
  EXPECT_EQ(Sum(&EngineSigns::stores), stores);
  EXPECT_GE(Sum(&EngineSigns::bypassed), answered + kEngines * kRoundsMeasured * 2);
  ExpectNoneFailed();
  RecordProperty("round_p99_us_before", static_cast<int>(before_us));
  RecordProperty("round_p99_us_bypassed", static_cast<int>(Round99PercentUs()));

  const json resumed = TerraceJson({"drain", "--resume"});
  EXPECT_EQ(resumed["mode"], "serving");
  ASSERT_TRUE(GoOn(2));
  EXPECT_GT(Sum(&EngineSigns::hits), hits) << "without a restart of anybody";
  EXPECT_GT(ServedAndNot(), came);
  ExpectNoneFailed();
}

// PROMISE: T23 a bypassed client beside a daemon that hangs
TEST_F(Drain, BypassedEnginesDoNotMindADaemonThatHangsOrEnds) {
  StartDaemon();
  StartEngines(2);
  ASSERT_TRUE(GoOn(10));
  TerraceJson({"drain", "--bypass"});
  ASSERT_TRUE(GoOn(1));
  daemon().Signal(SIGSTOP);
  ASSERT_TRUE(GoOn(100));
  daemon().Signal(SIGCONT);
  KillDaemon();
  ASSERT_TRUE(GoOn(100));
  ExpectNoneFailed();
  // The next daemon finds the domain bypassed, and so do who connects to it.
  daemon().Start({"--config", Path("terraced.toml")});
  ASSERT_TRUE(daemon().WaitReady()) << daemon().Errors();
  EXPECT_THAT(daemon().Errors(), HasSubstr("domain is bypassed"));
  ASSERT_TRUE(Eventually([&] { return TerraceJson({"status"})["domain"]["session_count"] >= 2; }));
  const uint64_t came = ServedAndNot();
  ASSERT_TRUE(GoOn(100));
  EXPECT_EQ(ServedAndNot(), came);
  EXPECT_EQ(TerraceJson({"drain", "--resume"})["mode"], "serving");
  const uint64_t hits = Sum(&EngineSigns::hits);
  ASSERT_TRUE(Eventually([&] { return Sum(&EngineSigns::hits) > hits; }));
  ExpectNoneFailed();
  struct stat kept;
  EXPECT_NE(stat((socket_path() + ".bypass").c_str(), &kept), 0) << "nothing of it is left";
}

// As libterrace of before, which knows of no notice page.
TEST_F(Drain, OlderClientsAreAnsweredMisses) {
  StartDaemon();
  test::RawClient old;
  ASSERT_TRUE(old.Attach(socket_path()));
  EXPECT_EQ(old.received_fds().size(), old.hello().node_count + 1u);
  const uint32_t group = old.Open("g", 4096);
  const auto keys = test::MakeKeys(8, 1);
  EXPECT_EQ(test::Store(old, group, keys).sealed_count, 8u);
  TerraceJson({"drain", "--bypass"});
  const auto acquired = old.CallKeys(protocol::Verb::kAcquire, group, keys);
  ASSERT_EQ(acquired.status(), StatusCode::kOk) << acquired.text();
  EXPECT_EQ(acquired.At<protocol::AcquireReply>().block_count, 0u);
  const auto reserved = old.CallKeys(protocol::Verb::kReserve, group, test::MakeKeys(1, 2));
  ASSERT_EQ(reserved.status(), StatusCode::kOk) << reserved.text();
  EXPECT_EQ(reserved.At<protocol::ReservedKey>(sizeof(protocol::ReserveReply)).status,
            static_cast<uint8_t>(StatusCode::kNoSpace));
  EXPECT_EQ(TerraceJson({"status"})["domain"]["requests_unserved"], 2);
  TerraceJson({"drain", "--resume"});
  EXPECT_EQ(
      old.CallKeys(protocol::Verb::kAcquire, group, keys).At<protocol::AcquireReply>().block_count,
      8u);
}

// An engine that holds eight blocks under a lease.
struct Holder {
  explicit Holder(const std::string& socket_path) {
    EXPECT_TRUE(engine.Attach(socket_path));
    group = engine.Open("g", 4096);
    test::Store(engine, group, keys);
    held = engine.CallKeys(protocol::Verb::kAcquire, group, keys).At<protocol::AcquireReply>();
    EXPECT_EQ(held.block_count, 8u);
  }

  test::RawClient engine;
  uint32_t group = 0;
  const std::vector<BlockKey> keys = test::MakeKeys(8, 1);
  protocol::AcquireReply held;
};

TEST_F(Drain, DrainingWaitsForWhatIsHeld) {
  StartDaemon();
  Holder holder(socket_path());
  auto& [engine, group, keys, held] = holder;
  ASSERT_FALSE(HasFailure());

  const Outcome waited = Terrace({"drain", "--wait", "1"});
  EXPECT_EQ(waited.exit_code, 1);
  EXPECT_THAT(waited.out, AllOf(HasSubstr("domain chat is draining, as uid"),
                                HasSubstr("left: 1 lease of 8 blocks (about 32.0 KiB)")));
  EXPECT_THAT(waited.err, AllOf(HasSubstr("after 1 s of --wait"), HasSubstr("terrace status")));
  const auto refused = engine.CallKeys(protocol::Verb::kAcquire, group, keys);
  EXPECT_EQ(refused.status(), StatusCode::kBusy);
  EXPECT_THAT(refused.text(), HasSubstr("being drained"));
  EXPECT_THAT(Terrace({"status"}).out,
              AllOf(HasSubstr("serving   draining"), HasSubstr("DEGRADED: the domain is being")));

  engine.Call(protocol::Verb::kRelease,
              test::BytesOf(protocol::ReleaseRequest{.token = held.token}));
  const Outcome done = Terrace({"drain", "--wait", "30"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("nothing is left"), HasSubstr("systemctl stop terraced"),
                              HasSubstr("no client starts it again")));
  EXPECT_EQ(TerraceJson({"drain", "--status"})["is_done"], true);
  EXPECT_EQ(Terrace({"drain", "--resume"}).out, "domain chat is serving\n");
  EXPECT_EQ(engine.CallKeys(protocol::Verb::kAcquire, group, keys).status(), StatusCode::kOk);
}

// A script that stops the daemon once the wait is over has to know that it was not drained.
TEST_F(Drain, WhoWaitsIsToldThatSomebodyHasResumedIt) {
  StartDaemon();
  Holder holder(socket_path());
  ASSERT_FALSE(HasFailure());
  Outcome waited;
  std::thread waiting([&] { waited = Terrace({"drain", "--wait", "60"}); });
  EXPECT_TRUE(Eventually([&] { return TerraceJson({"drain", "--status"})["mode"] == "draining"; }));
  TerraceJson({"drain", "--resume"});
  waiting.join();
  EXPECT_EQ(waited.exit_code, 1);
  EXPECT_THAT(waited.err, HasSubstr("somebody has resumed it meanwhile"));
  const Outcome looked = Terrace({"drain", "--status", "--wait", "1"});
  EXPECT_EQ(looked.exit_code, 1);
  EXPECT_THAT(looked.err, HasSubstr("domain chat serves"));
}

// What a drained domain has stored is below when `drain --wait` ends, and the daemon may be killed:
// everything on the drive, and everything on the server that other hosts read.
TEST_F(Drain, WhatIsQueuedForADriveAndForRedisArrives) {
  constexpr uint64_t kPrompts = 200;
  testing::RedisProcess server;
  const std::string nvme = "[nvme]\npaths = [\"" + Path("nvme") +
                           "\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"8MiB\"\n";
  const std::string redis = "[redis]\nendpoints = [\"" + ToText(server.unix_endpoint()) +
                            "\"]\nprobe_timeout_us = 10000000\ncommand_timeout_ms = 30000\n";
  const auto connect = [this](std::unique_ptr<Client>* client) {
    ClientOptions options;
    options.socket_path = socket_path();
    options.default_deadline_us = kLongUs;
    *client = Client::Create(options).value();
    EXPECT_TRUE((*client)->WaitConnected(kLongUs).ok());
    return (*client)->Open(Model(), 1).value();
  };
  StartDaemon(nvme + redis);
  std::unique_ptr<Client> client;
  GroupRef group = connect(&client);
  ASSERT_TRUE(Eventually([this] { return TerraceJson({"status"})["redis"]["is_ready"] == true; }));
  server.Pause();  // so that there is something to wait for
  const std::vector<std::byte> part(kPartBytes, std::byte{7});
  for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) {
    auto lease = client->Reserve(group, Keys(prompt)).value();
    for (uint32_t i = 0; i < kBlocks; ++i) ASSERT_TRUE(lease.WritePart(i, 0, 0, part).ok());
    ASSERT_EQ(client->Commit(lease).value(), kBlocks);
  }
  std::thread later([&server] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    server.Resume();
  });
  const Outcome drained = Terrace({"drain", "--wait", "60"});
  later.join();
  EXPECT_EQ(drained.exit_code, 0) << drained.out << drained.err;
  client.reset();
  KillDaemon();

  // With nothing but the server, as another host; then from its drive alone. (The other way round
  // it has been without a server, and believes nothing on it.)
  for (const std::string& table : {redis, nvme}) {
    StartDaemon(table);
    group = connect(&client);
    if (table == redis) {
      ASSERT_TRUE(
          Eventually([this] { return TerraceJson({"status"})["redis"]["is_ready"] == true; }));
    }
    std::vector<std::byte> found(kPartBytes);
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) {
      auto lease = client->Acquire(group, Keys(prompt)).value();
      ASSERT_EQ(lease.block_count(), kBlocks) << prompt << '\n' << table;
      ASSERT_TRUE(client->WaitReady(lease, kBlocks, kLongUs).ok());
      ASSERT_TRUE(lease.CopyPart(kBlocks - 1, 0, 0, found).ok());
      EXPECT_EQ(found, part);
    }
    client.reset();
    KillDaemon();
  }
}

TEST_F(Drain, WhatIsWrongIsSaid) {
  StartDaemon();
  EXPECT_EQ(Terrace({"drain", "--bypass", "--resume"}).exit_code, 2);
  EXPECT_EQ(Terrace({"drain", "--resume", "--wait", "3"}).exit_code, 2);
  EXPECT_EQ(Terrace({"drain", "--wait", "-1"}).exit_code, 2);
  const Outcome other = Terrace({"drain", "--domain", "batch", "--socket", socket_path()});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, AllOf(HasSubstr("domain 'chat'"), HasSubstr("not 'batch'")));
  EXPECT_EQ(TerraceJson({"drain", "--status"})["mode"], "serving") << "nothing was changed";
  const Outcome nobody = Terrace({"drain", "--domain", "batch"});
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("there is no socket " + daemon().directory() + "/batch.sock"));
}

// Where the file cannot be made, and says so.
TEST_F(Drain, ABypassThatCannotBeKeptIsOneAllTheSame) {
  StartDaemon();
  ASSERT_EQ(symlink("/nowhere/at/all", (socket_path() + ".bypass").c_str()), 0);
  const Outcome bypassed = Terrace({"drain", "--bypass"});
  EXPECT_EQ(bypassed.exit_code, 0);
  EXPECT_THAT(bypassed.out,
              AllOf(HasSubstr("is bypassed"), HasSubstr("a restart of the daemon ends")));
  unlink((socket_path() + ".bypass").c_str());
}

}  // namespace
}  // namespace terrace
