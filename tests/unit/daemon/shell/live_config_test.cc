// The configuration of a daemon that runs: what changes, what does not, and what is said of it.
#include "daemon/shell/live_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "daemon/config/config_text.h"
#include "redis/authority_of_nobody.h"
#include "tests/unit/daemon/shell/live_config_fixture.h"

namespace terrace {
namespace {

using nlohmann::json;
using protocol::ConfigAction;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(LiveConfigTest, TellsWhereEachValueComesFrom) {
  Start("[daemon]\nlog_level = \"debug\"\n\ndram_bytes = \"2GiB\"\n");
  const json level = Get("daemon.log_level");
  EXPECT_EQ(level["value"], "\"debug\"");
  EXPECT_EQ(level["from"], path() + ":2");
  EXPECT_EQ(level["is_live"], true);
  EXPECT_EQ(Get("daemon.dram_bytes")["from"], path() + ":4");
  EXPECT_EQ(Get("daemon.segment_bytes")["is_live"], false);
  EXPECT_EQ(Get("daemon.log_format")["from"], "default");
  EXPECT_EQ(Get("daemon.fenced_bytes_max")["value"], "\"512MiB\"");
  EXPECT_EQ(Get("daemon.fenced_bytes_max")["from"], "default, worked out");
  ASSERT_TRUE(Ask(ConfigAction::kSet, "daemon.log_level=error"));
  EXPECT_EQ(Get("daemon.log_level")["from"], "set");
  EXPECT_GT((*Ask(ConfigAction::kGet))["keys"].size(), 80u);
  EXPECT_FALSE(Ask(ConfigAction::kGet, "daemon.log_levl"));
  EXPECT_THAT(why_, HasSubstr("the nearest is daemon.log_level"));
  EXPECT_FALSE(Ask(ConfigAction::kGet, "nvme.capcity"));
  EXPECT_THAT(why_, HasSubstr("the nearest is nvme.capacity_bytes"));
  EXPECT_FALSE(Ask(ConfigAction::kGet, "nvme.qqqq"));
  EXPECT_THAT(why_, Not(HasSubstr("the nearest is")));
  EXPECT_FALSE(Ask(ConfigAction::kGet, "nonsense"));
  EXPECT_THAT(why_, HasSubstr("'nonsense' is no key"));
  EXPECT_FALSE(Ask(ConfigAction::kGet, "dram_bytes"));
  EXPECT_THAT(why_, HasSubstr("'dram_bytes' lacks its section: ask for daemon.dram_bytes"));
}

// The command line outranks whatever a reload, or a set, would change.
TEST_F(LiveConfigTest, WhatTheCommandLineSaysNeedsARestart) {
  Start("[daemon]\ndram_bytes = \"2GiB\"\n", {.dram_bytes = "1GiB"});
  EXPECT_EQ(Get("daemon.dram_bytes")["value"], "\"1GiB\"");
  EXPECT_EQ(Get("daemon.dram_bytes")["from"], "command line");
  EXPECT_EQ(Get("daemon.dram_bytes")["is_live"], false);
  EXPECT_EQ(Get("daemon.log_level")["is_live"], true);
}

// The file's larger or smaller size is neither refused with other keys nor taken with them.
TEST_F(LiveConfigTest, WhatTheCommandLineSaysStaysBesideOtherKeys) {
  for (const char* of_file : {"2GiB", "256MiB"}) {
    Start(std::string("[daemon]\ndram_bytes = \"") + of_file + "\"\n", {.dram_bytes = "1GiB"});
    ASSERT_TRUE(Ask(ConfigAction::kSet, "daemon.log_level=debug")) << of_file << ": " << why_;
    EXPECT_EQ(config_.dram_bytes, kGiB) << of_file;
    ASSERT_TRUE(Ask(ConfigAction::kReload)) << of_file << ": " << why_;
    EXPECT_EQ(config_.dram_bytes, kGiB) << of_file;
  }
}

TEST_F(LiveConfigTest, SeveralKeysAreSetAtOnceOrNoneIs) {
  Start("[nvme]\npaths = [\"/a\"]\ncapacity_bytes = \"8GiB\"\nslab_bytes = \"1GiB\"\n");
  const std::string both =
      "domain.default.nvme_guaranteed_bytes=2GiB\ndomain.default.nvme_max_bytes=3GiB";
  const auto set = Ask(ConfigAction::kSet, both);
  ASSERT_TRUE(set) << why_;
  EXPECT_EQ((*set)["changed"].size(), 2u);
  EXPECT_EQ(config_.domains[0].nvme_max_bytes, 3 * kGiB);
  EXPECT_EQ(Get("domain.default.nvme_guaranteed_bytes")["from"], "set");
  EXPECT_EQ(applied_count_, 1);
  // Alone the guarantee would be above the limit.
  const std::string again =
      "domain.default.nvme_guaranteed_bytes=4GiB\ndomain.default.nvme_max_bytes=5GiB";
  ASSERT_TRUE(Ask(ConfigAction::kSet, again)) << why_;
  EXPECT_EQ(applied_count_, 2);

  std::string many;
  size_t many_count = 0;
  for (const ConfigEntry& entry : ConfigEntries(config_)) {
    if (!entry.is_live || entry.value.empty() || many_count == 17) continue;
    many += (many_count++ > 0 ? "\n" : "") + entry.key + "=" + entry.value;
  }
  const std::pair<std::string, const char*> kRefused[] = {
      {"domain.default.borrow_priority=7\ndomain.default.nvme_guaranteed_bytes=6GiB",
       "nvme_guaranteed_bytes is 6GiB"},
      {"domain.default.borrow_priority=7\ndomain.default.ttl_default_s=-1",
       "domain.default.ttl_default_s is -1"},
      {"domain.default.borrow_priority=7\ndaemon.groups_max=9", "needs a restart"},
      {"domain.default.borrow_priority=7\n", "'' is no KEY=VALUE"},
      {"domain.default.borrow_priority=7\ndomain.default.borrow_priority=8", "given two values"},
      {many, "more than 16 changes at once"}};
  for (const auto& [text, why] : kRefused) {
    EXPECT_FALSE(Ask(ConfigAction::kSet, text)) << text;
    EXPECT_THAT(why_, AllOf(HasSubstr(why), HasSubstr("None of these keys has changed"))) << text;
  }
  EXPECT_EQ(config_.domains[0].borrow_priority, DomainConfig().borrow_priority);
  EXPECT_EQ(applied_count_, 2);
}

// Once: what is so already has been said.
TEST_F(LiveConfigTest, AChangeThatShutsEverybodyOutSaysSo) {
  const std::string a = "[[domain]]\nname = \"a\"\nsocket = \"/a\"\n",
                    b = "[[domain]]\nname = \"b\"\nsocket = \"/b\"\n", nobody = "allow_uids = []\n";
  Start(a + b + nobody);
  const auto notes_on = [this](const std::string& change) {
    const auto set = Ask(ConfigAction::kSet, change);
    EXPECT_TRUE(set) << why_;
    return set ? (*set)["notes"] : json();
  };
  EXPECT_EQ(notes_on("domain.a.allow_gids=[]"),
            json({"domain a admits nobody: allow_uids and allow_gids name nobody who can be let "
                  "in"}));
  EXPECT_EQ(notes_on("daemon.log_level=debug"), json::array());
  EXPECT_EQ(notes_on("domain.a.allow_uids=[7]"), json::array());
  EXPECT_EQ(notes_on("domain.a.allow_uids=[65534, 4294967295]").size(), 1u);
  EXPECT_EQ(notes_on("domain.a.allow_uids=[7]"), json::array());
  Write(a + nobody + b);
  const auto reloaded = Ask(ConfigAction::kReload);
  ASSERT_TRUE(reloaded) << why_;
  EXPECT_EQ((*reloaded)["notes"].size(), 1u);
}

TEST_F(LiveConfigTest, AReloadTakesLiveKeysAndNamesTheOthers) {
  Start("[daemon]\nlog_level = \"info\"\n");
  Write("[daemon]\nlog_level = \"debug\"\ndram_bytes = \"4GiB\"\n[nvme]\nread_ahead_blocks = 3\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ((*answer)["changed"], json::parse(R"([
      {"key": "daemon.log_level", "from": "\"info\"", "to": "\"debug\""}])"))
      << "nothing reads ahead from a tier that is not there";
  EXPECT_EQ((*answer)["needs_restart"], json::parse(R"([
      {"key": "daemon.dram_bytes", "running": "\"1GiB\"", "file": "\"4GiB\""},
      {"key": "daemon.fenced_bytes_max", "running": "\"256MiB\"", "file": "\"1GiB\""},
      {"key": "domain.default.dram_max_bytes", "running": "\"1GiB\"", "file": "\"4GiB\""}])"));
  EXPECT_EQ(config_.log_level, LogLevel::kDebug);
  EXPECT_EQ(config_.nvme.read_ahead_blocks, 3u);
  EXPECT_EQ(config_.dram_bytes, 1 * kGiB);
  EXPECT_EQ(config_.fenced_bytes_max, 256 * kMiB) << "worked out from what is in effect";
  EXPECT_EQ(applied_count_, 1);
  EXPECT_EQ(Get("daemon.log_level")["from"], path() + ":2");
}

TEST_F(LiveConfigTest, AnErrorAnywhereChangesNothing) {
  Start("[daemon]\nlog_level = \"info\"\n");
  const auto expect_refused = [&](const std::string& text, const std::string& why) {
    Write(text);
    EXPECT_FALSE(Ask(ConfigAction::kReload)) << text;
    EXPECT_THAT(why_, HasSubstr(why));
  };
  expect_refused("[daemon]\nlog_level = \"debug\"\n\nread_ahead = 3\n",
                 path() + ":4: daemon.read_ahead is no known key");
  expect_refused("[daemon]\nlog_level = \"debug\"\n[nvme]\nread_ahead_blocks = -1\n",
                 path() + ":4: nvme.read_ahead_blocks is -1; write a whole number");
  expect_refused("[daemon]\nlog_level = \"debug\"\ndeadline_default_ms = 700000\n",
                 "daemon.deadline_default_ms is 700000, more than");
  expect_refused("[daemon\n", "this is no TOML");
  std::filesystem::remove(path());
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  EXPECT_THAT(why_, HasSubstr("cannot read it"));
  EXPECT_EQ(config_.log_level, LogLevel::kInfo);
  EXPECT_EQ(applied_count_, 0);
}

// Of keys only their names: the document is told to whoever asks, and to the log.
TEST_F(LiveConfigTest, AReloadNamesTheKeysThatItTook) {
  const std::string first = "terrace-key-1 " + std::string(62, '0') + "01\n";
  const std::string second = "terrace-key-1 " + std::string(62, '0') + "02\n";
  WriteKeys(first);
  const auto domain = [this](const std::string& name) {
    return "[[domain]]\nname = \"" + name + "\"\nsocket = \"" + directory_ + "/" + name +
           ".sock\"\n";
  };
  Start(domain("chat") + "encryption_keys_file = \"" + keys_path() + "\"\n" + domain("plain"));
  auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ((*answer)["keys_taken"], json::array()) << "they are as they were";

  const std::string old_id = KeyIdText(Keys(first)->first());
  const std::string new_id = KeyIdText(Keys(second)->first());
  WriteKeys(second + first);
  answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ((*answer)["changed"], json::array());
  EXPECT_EQ((*answer)["keys_taken"], json::array({{{"domain", "chat"},
                                                   {"file", keys_path()},
                                                   {"from", old_id},
                                                   {"to", new_id + ", " + old_id},
                                                   {"encrypts", new_id}}}));
  EXPECT_EQ((*Ask(ConfigAction::kReload))["keys_taken"], json::array());

  WriteKeys(first + second);
  EXPECT_EQ((*Ask(ConfigAction::kReload))["keys_taken"][0]["encrypts"], old_id) << "the order";
  WriteKeys("nonsense\n");
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  Write(domain("chat") + domain("plain"));
  answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << "no start will read them: " << why_;
  EXPECT_EQ((*answer)["keys_taken"], json::array());
  EXPECT_EQ((*answer)["needs_restart"][0]["key"], "domain.chat.encryption_keys_file");
  Write(domain("chat") + "encryption_keys_file = \"" + keys_path() + "\"\n" + domain("plain"));
  WriteKeys(first);
  EXPECT_EQ((*Ask(ConfigAction::kReload))["keys_taken"][0]["from"], old_id + ", " + new_id)
      << "what was refused was not taken";
}

TEST_F(LiveConfigTest, AReloadNamesTheTlsFilesThatHaveChangedAndRefusesBadOnes) {
  const std::string ca = directory_ + "/ca.pem";
  const auto replace = [&](const std::string& text) {
    std::ofstream(ca + ".next") << text;
    std::filesystem::rename(ca + ".next", ca);
  };
  replace(kAuthorityOfNobody);
  Start("[redis]\nendpoints = [\"127.0.0.1:1\"]\ntls = \"on\"\ntls_ca_file = \"" + ca + "\"\n");
  EXPECT_EQ((*Ask(ConfigAction::kReload))["tls_files_taken"], json::array());
  replace(std::string(kAuthorityOfNobody) + kAuthorityOfNobody);
  const json taken = json::array({{{"key", "redis.tls_ca_file"}, {"file", ca}}});
  EXPECT_EQ((*Ask(ConfigAction::kReload))["tls_files_taken"], taken);
  EXPECT_EQ((*Ask(ConfigAction::kReload))["tls_files_taken"], json::array());
  replace("half a cert");
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  EXPECT_THAT(why_, AllOf(HasSubstr("redis.tls_ca_file " + ca), HasSubstr("put those there")));
  replace(kAuthorityOfNobody);
  EXPECT_EQ((*Ask(ConfigAction::kReload))["tls_files_taken"], taken);
}

TEST_F(LiveConfigTest, AnEndWaitsForAReloadAsLongAsItMay) {
  Start("[daemon]\nlog_level = \"info\"\n");
  EXPECT_TRUE(live_->EndReading(std::chrono::milliseconds(0))) << "nothing was asked for";
  std::unique_lock held(mutex_);  // what a reload ends with waits for it, as for a file that hangs
  live_->Ask(ConfigAction::kReload, "", [](const Error&, const std::string&) {});
  EXPECT_FALSE(live_->EndReading(std::chrono::milliseconds(50)));
  held.unlock();
  EXPECT_TRUE(live_->EndReading(std::chrono::minutes(1)));
}

TEST_F(LiveConfigTest, WhatIsSetLastsUntilTheNextReload) {
  Start("[daemon]\nlog_level = \"info\"\n");
  const auto set = Ask(ConfigAction::kSet, "daemon.log_level=debug");
  ASSERT_TRUE(set) << why_;
  EXPECT_EQ((*set)["changed"], json::parse(R"([
      {"key": "daemon.log_level", "from": "\"info\"", "to": "\"debug\""}])"));
  ASSERT_TRUE(Ask(ConfigAction::kSet, "daemon.slow_request_ms=7")) << why_;
  EXPECT_EQ(config_.slow_request_ms, 7u);
  ASSERT_TRUE(Ask(ConfigAction::kSet, "domain.default.allow_uids=[7, 8]")) << why_;
  EXPECT_EQ(config_.domains[0].allow_uids, (std::vector<uint32_t>{7, 8}));
  EXPECT_EQ(applied_count_, 3);
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer);
  EXPECT_EQ((*answer)["changed"].size(), 3u);
  EXPECT_TRUE((*answer)["needs_restart"].empty());
  EXPECT_EQ(config_.log_level, LogLevel::kInfo);
  EXPECT_FALSE(config_.domains[0].allow_uids.has_value());
}

TEST_F(LiveConfigTest, WhatCannotBeSetIsSaidAndChangesNothing) {
  Start("[daemon]\nlog_level = \"info\"\n");
  const std::pair<const char*, const char*> kRefused[] = {
      {"daemon.log_level", "is no KEY=VALUE"},
      {"log_level=debug", "'log_level' lacks its section: write daemon.log_level=debug"},
      {"log_level", "'log_level' lacks its section: write daemon.log_level=VALUE"},
      {"allow_uids=[7]", "write domain.default.allow_uids=[7]"},
      {"eviction=lru", "'eviction' lacks its section: there are daemon.eviction, nvme.eviction"},
      {"nonsense=1", "'nonsense' is no key: they are called as daemon.log_level"},
      {"nonsense", "'nonsense' is no KEY=VALUE"},
      {"", "'' is no KEY=VALUE"},
      {"domain.default.borrow_priority=2000", "domain.default.borrow_priority is 2000; write"},
      {"domain.default.borow_priority=1",
       "domain.default.borow_priority is no known key; the nearest is "
       "domain.default.borrow_priority"},
      {"domain.default.nvme_max_bytes=4GiB",
       "domain.default.nvme_max_bytes is of a tier that this daemon has not, since nvme.paths is "
       "not set: write both into "},
      {"domain.default.redis_max_bytes=4GiB", "since redis.endpoints is not set"},
      {"redis.use=fetch", "since redis.endpoints is not set"},
      {"nvme.read_ahead_blocks=5", "since nvme.paths is not set"},
      {"nvme.capacity_bytes=4GiB", "since nvme.paths is not set"},
      {"hbm.hits_min=3", "since hbm.capacity_bytes is not set"},
      {"daemon.log_level=debgu", "the nearest is \"debug\""},
      {"daemon.segment_bytes=4MiB", "daemon.segment_bytes needs a restart"},
      {"daemon.dram_bytes=4GiB", "raised again up to 1GiB, what it was started with"},
      {"daemon.dram_bytes=128MiB", "daemon.dram_bytes is 128MiB"},
      {"nvme.paths=[\"/mnt/d\"]", "nvme.paths needs a restart: write it into "},
      {"domain.default.socket=/s", "domain.default.socket needs a restart: write it"},
      {"domain.other.allow_uids=[1]", "there is no domain 'other'; the daemon has 'default'"},
      {"nvme.read_ahead_blocks=5000", "a whole number from 0 to 4096"},
      {"daemon.deadline_default_ms=700000", "more than daemon.deadline_ms_max"},
      {"daemon.nothing=1", "daemon.nothing is no known key"}};
  for (const auto& [text, why] : kRefused) {
    EXPECT_FALSE(Ask(ConfigAction::kSet, text)) << text;
    EXPECT_THAT(why_, HasSubstr(why)) << text;
    EXPECT_THAT(why_, Not(ContainsRegex("^[^ ]*:[0-9]+: "))) << "a line that nobody wrote";
  }
  EXPECT_FALSE(Ask(static_cast<ConfigAction>(9)));
  EXPECT_THAT(why_, HasSubstr("config action 9"));
  EXPECT_EQ(applied_count_, 0);
  EXPECT_EQ(config_.deadline_default_ms, DaemonConfig().deadline_default_ms);
}

TEST_F(LiveConfigTest, MemoryGoesDownAndUpToWhatItWas) {
  Start("[daemon]\ndram_bytes = \"2GiB\"\n");
  ASSERT_TRUE(Ask(ConfigAction::kSet, "daemon.dram_bytes=1GiB")) << why_;
  EXPECT_EQ(config_.dram_bytes, 1 * kGiB);
  EXPECT_EQ(config_.fenced_bytes_max, 256 * kMiB) << "worked out from what is in effect";
  EXPECT_EQ(config_.domains[0].dram_max_bytes, 2 * kGiB) << "clients have mapped so much";
  EXPECT_FALSE(Ask(ConfigAction::kSet, "daemon.dram_bytes=2304MiB"));
  EXPECT_EQ(config_.dram_bytes, 1 * kGiB);
  Write("[daemon]\ndram_bytes = \"3GiB\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ(config_.dram_bytes, 2 * kGiB);
  EXPECT_EQ((*answer)["needs_restart"], json::parse(R"([
      {"key": "daemon.dram_bytes", "running": "\"2GiB\"", "file": "\"3GiB\""},
      {"key": "daemon.fenced_bytes_max", "running": "\"512MiB\"", "file": "\"768MiB\""},
      {"key": "domain.default.dram_max_bytes", "running": "\"2GiB\"", "file": "\"3GiB\""}])"));
}

TEST_F(LiveConfigTest, TheSizeOfTheDrivesTierGoesUpAndDown) {
  Start("[nvme]\npaths = [\"/a\", \"/b\"]\ncapacity_bytes = \"8GiB\"\n");
  ASSERT_TRUE(Ask(ConfigAction::kSet, "nvme.capacity_bytes=4GiB")) << why_;
  EXPECT_EQ(config_.nvme.capacity_bytes, 4 * kGiB);
  EXPECT_EQ(config_.domains[0].nvme_max_bytes, 4 * kGiB) << "worked out from what is in effect";
  EXPECT_EQ(config_.domains[0].nvme_guaranteed_bytes, 4 * kGiB);
  EXPECT_EQ(Get("nvme.slab_bytes")["value"], "\"512MiB\"") << "its files are that large";
  EXPECT_EQ(Get("nvme.slab_bytes")["from"], "default, worked out");
  EXPECT_FALSE(Ask(ConfigAction::kSet, "nvme.capacity_bytes=512MiB"));
  EXPECT_THAT(why_,
              AllOf(HasSubstr("nvme.capacity_bytes is 512MiB"), HasSubstr("nvme.paths names 2"),
                    HasSubstr("raise capacity_bytes to 1GiB")));
  EXPECT_EQ(config_.nvme.capacity_bytes, 4 * kGiB);
  Write("[nvme]\npaths = [\"/a\", \"/b\"]\ncapacity_bytes = \"100GiB\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ(config_.domains[0].nvme_max_bytes, 100 * kGiB);
  EXPECT_EQ(config_.nvme.slab_bytes, 512 * kMiB);
  EXPECT_EQ((*answer)["needs_restart"], json::parse(R"([
      {"key": "nvme.slab_bytes", "running": "\"512MiB\"", "file": "\"1GiB\""}])"));
  EXPECT_EQ(Get("nvme.slab_bytes")["from"], "kept");
}

// Files keep their size: where so many of it have no place, neither has the tier.
TEST_F(LiveConfigTest, ATierIsNotRaisedAboveWhatItsFilesHold) {
  const std::string drive = "[nvme]\npaths = [\"/a\"]\ncapacity_bytes = ";
  Start(drive + "\"500GiB\"\n");
  ASSERT_TRUE(Ask(ConfigAction::kSet, "nvme.capacity_bytes=4TiB")) << why_;
  const auto sentence =
      AllOf(HasSubstr("nvme.capacity_bytes is 7TiB, nvme.slab_bytes is 1GiB"),
            HasSubstr("raise slab_bytes to 2GiB, or lower nvme.capacity_bytes to 4TiB"),
            HasSubstr("a restart takes it"));
  EXPECT_FALSE(Ask(ConfigAction::kSet, "nvme.capacity_bytes=7TiB"));
  EXPECT_THAT(why_, sentence);
  for (const char* slab : {"", "slab_bytes = \"2GiB\"\n"}) {
    why_.clear();
    Write(drive + "\"7TiB\"\n" + slab);
    EXPECT_FALSE(Ask(ConfigAction::kReload));
    EXPECT_THAT(why_, sentence) << slab;
  }
  Write(drive + "\"7TiB\"\nslab_bytes = \"1GiB\"\n");
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  EXPECT_THAT(why_, AllOf(HasSubstr("raise slab_bytes to 2GiB"), Not(HasSubstr("restart"))));
  EXPECT_EQ(config_.nvme.capacity_bytes, 4096 * kGiB);
}

// The file may have changed after it was read for the one before.
TEST_F(LiveConfigTest, AReloadDuringAnotherIsDoneAfterIt) {
  Start("[daemon]\nlog_level = \"info\"\n");
  std::vector<std::string> told;
  for (const char* who : {"first", "second", "third"}) {
    live_->Ask(ConfigAction::kReload, "", [&told, who](const Error& error, const std::string&) {
      told.push_back(who + std::string(error.ok() ? "" : ": " + error.sentence()));
    });
  }
  const auto work = WorkOfReader();
  Write("[daemon]\nlog_level = \"error\"\n");
  work();
  EXPECT_EQ(told, std::vector<std::string>{"first"});
  EXPECT_EQ(config_.log_level, LogLevel::kInfo);
  WorkOfReader()();
  EXPECT_EQ(told, (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_EQ(config_.log_level, LogLevel::kError);
}

TEST_F(LiveConfigTest, ReloadsThatWaitAreBounded) {
  Start("[daemon]\nlog_level = \"info\"\n");
  uint32_t refused_count = 0;
  for (int i = 0; i < 20; ++i) {
    live_->Ask(ConfigAction::kReload, "", [&](const Error& error, const std::string&) {
      if (error.ok()) return;
      ++refused_count;
      EXPECT_THAT(error.sentence(), HasSubstr("16 others wait for it: try again"));
    });
  }
  EXPECT_EQ(refused_count, 3u);
}

TEST_F(LiveConfigTest, WithoutAFileThereIsNothingToReload) {
  ConfigSource source;
  source.environment.runtime_dir = directory_;
  source.environment.home = directory_;
  source.environment.uid = 1000;
  ASSERT_TRUE(LoadConfig(source, &config_).ok());
  live_ = std::make_unique<LiveConfig>(
      source, config_,
      LiveConfig::Hooks{.apply = [this] { ++applied_count_; }, .post = [](auto) {}});
  is_refused_at_once_ = true;
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  EXPECT_THAT(why_, HasSubstr("started without --config"));
  EXPECT_TRUE(Ask(ConfigAction::kSet, "daemon.log_level=debug")) << why_;
}

}  // namespace
}  // namespace terrace
