// What of a file waits for a restart, and what is said of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/daemon/shell/live_config_fixture.h"

namespace terrace {
namespace {

using nlohmann::json;
using protocol::ConfigAction;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class LiveConfigRestartTest : public LiveConfigTest {};

// A tier comes with a restart, and what a domain is to have of it, too.
TEST_F(LiveConfigRestartTest, AReloadLeavesWhatIsOfATierThatIsNotThereYet) {
  Start("[[domain]]\nname = \"a\"\nsocket = \"/a\"\n");
  Write(
      "[daemon]\nlog_level = \"debug\"\n[nvme]\npaths = [\"/d\"]\ncapacity_bytes = \"8GiB\"\n"
      "[redis]\nendpoints = [\"h:1\"]\ncapacity_bytes = \"8GiB\"\n"
      "[[domain]]\nname = \"a\"\nsocket = \"/a\"\nnvme_max_bytes = \"2GiB\"\n"
      "redis_guaranteed_bytes = \"1GiB\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ(config_.log_level, LogLevel::kDebug);
  EXPECT_EQ(config_.domains[0].nvme_max_bytes, 0u);
  EXPECT_THAT(RestartKeys(*answer),
              UnorderedElementsAre("nvme.paths", "nvme.capacity_bytes", "redis.endpoints",
                                   "redis.capacity_bytes", "domain.a.nvme_guaranteed_bytes",
                                   "domain.a.nvme_max_bytes", "domain.a.redis_guaranteed_bytes",
                                   "domain.a.redis_max_bytes"));
  EXPECT_EQ(Get("nvme.paths")["from"], "kept") << "it is not the file's that is in effect";
  EXPECT_EQ(Get("nvme.capacity_bytes")["from"], "kept");
  EXPECT_EQ(Get("domain.a.nvme_max_bytes")["from"], "kept");
  EXPECT_EQ(Get("nvme.slab_bytes")["from"], "default, worked out");
  Write("[daemon]\nlog_level = \"debug\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\n");
  ASSERT_TRUE(Ask(ConfigAction::kReload)) << why_;
  EXPECT_EQ(Get("nvme.paths")["from"], "default");
}

TEST_F(LiveConfigRestartTest, AReloadLeavesWhatIsOfATierThatARestartTakesAway) {
  Start(
      "[nvme]\npaths = [\"/d\"]\ncapacity_bytes = \"8GiB\"\n"
      "[redis]\nendpoints = [\"h:1\"]\ncapacity_bytes = \"8GiB\"\n"
      "[[domain]]\nname = \"a\"\nsocket = \"/a\"\nnvme_max_bytes = \"2GiB\"\n"
      "redis_guaranteed_bytes = \"1GiB\"\n");
  const DaemonConfig before = config_;
  // Until the next reload, also of what that leaves alone.
  ASSERT_TRUE(Ask(ConfigAction::kSet, "nvme.capacity_bytes=4GiB")) << why_;
  ASSERT_TRUE(Ask(ConfigAction::kSet, "redis.use=fetch")) << why_;
  Write("[daemon]\nlog_level = \"debug\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ(config_.log_level, LogLevel::kDebug);
  EXPECT_EQ(config_.nvme.capacity_bytes, 8 * kGiB);
  EXPECT_EQ(config_.redis.capacity_bytes, 8 * kGiB);
  EXPECT_EQ(config_.redis.use, before.redis.use);
  EXPECT_EQ(config_.domains[0].nvme_max_bytes, 2 * kGiB);
  EXPECT_EQ(config_.domains[0].redis_guaranteed_bytes, before.domains[0].redis_guaranteed_bytes);
  EXPECT_EQ(config_.domains[0].redis_max_bytes, before.domains[0].redis_max_bytes);
  EXPECT_THAT(RestartKeys(*answer),
              UnorderedElementsAre("nvme.paths", "nvme.capacity_bytes", "redis.endpoints",
                                   "redis.capacity_bytes", "domain.a.nvme_guaranteed_bytes",
                                   "domain.a.nvme_max_bytes", "domain.a.redis_guaranteed_bytes",
                                   "domain.a.redis_max_bytes"));
  EXPECT_EQ((*answer)["changed"].size(), 3u) << (*answer)["changed"];
  EXPECT_EQ(Get("redis.endpoints")["from"], "kept");
  EXPECT_EQ(Get("nvme.capacity_bytes")["from"], "kept");
  ASSERT_TRUE(Ask(ConfigAction::kSet, "nvme.capacity_bytes=4GiB")) << why_;
  EXPECT_EQ(Get("nvme.capacity_bytes")["from"], "set") << "the tier is there until then";
}

TEST_F(LiveConfigRestartTest, ARestartIsNeededForWhatItWouldChange) {
  const std::string all = "[daemon]\ndram_bytes = \"1GiB\"\n";
  const std::string endpoint = "[kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\n";
  const std::string a = "[[domain]]\nname = \"a\"\nsocket = \"/a\"\n";
  Start(all + endpoint + a);
  EXPECT_EQ(Get("domain.a.dram_max_bytes")["from"], "default, worked out");
  EXPECT_EQ(Get("domain.a.borrow_priority")["from"], "default");
  // What is in effect, said in so many words.
  std::string same = a;
  for (const char* key : {"dram_max_bytes", "kv_events", "secret_file"}) {
    const std::string value = Get(std::string("domain.a.") + key)["value"];
    same += key + (" = " + value) + "\n";
  }
  Write("[daemon]\ndram_bytes = \"1GiB\"\nstate_dir = " +
        Get("daemon.state_dir")["value"].get<std::string>() + "\n" + endpoint + same);
  auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_THAT(RestartKeys(*answer), IsEmpty());
  EXPECT_EQ(Get("domain.a.dram_max_bytes")["from"], path() + ":9");
  // What follows from what is live, at a start alone.
  Write("[daemon]\ndram_bytes = \"512MiB\"\n" + endpoint + a);
  answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_THAT(RestartKeys(*answer), UnorderedElementsAre("domain.a.dram_max_bytes"));
  EXPECT_EQ(Get("domain.a.dram_max_bytes")["from"], "kept");
  // Another domain, and what that means for the first.
  Write(all + endpoint + a + "[[domain]]\nname = \"b\"\nsocket = \"/b\"\nborrow_priority = 3\n");
  answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_THAT(RestartKeys(*answer),
              UnorderedElementsAre("domain.a.kv_events", "domain.b.name", "domain.b.socket",
                                   "domain.b.borrow_priority"));
  // Size of files on drives that are not there.
  Write(all + "[nvme]\nslab_bytes = \"128MiB\"\n" + endpoint + a);
  answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_THAT(RestartKeys(*answer), UnorderedElementsAre("nvme.slab_bytes"));
  EXPECT_EQ(Get("nvme.slab_bytes")["from"], "kept");
}

TEST_F(LiveConfigRestartTest, TheCommandLinesSocketIsARestartsToo) {
  Start("[[domain]]\nname = \"a\"\nsocket = \"/x\"\n", {.socket_path = directory_ + "/s"});
  Write("[[domain]]\nname = \"a\"\nsocket = \"/y\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_THAT(RestartKeys(*answer), IsEmpty());
  EXPECT_EQ(Get("domain.a.socket")["from"], "command line");
}

TEST_F(LiveConfigRestartTest, ADomainThatTheFileHasNoMoreKeepsWhatItHas) {
  const std::string domain = "[[domain]]\nname = \"a\"\nsocket = \"/a\"\n";
  Start(domain +
        "dram_guaranteed_bytes = \"512MiB\"\n[[domain]]\nname = \"b\"\nsocket = \"/b\"\n"
        "dram_guaranteed_bytes = \"512MiB\"\n");
  Write(domain + "dram_guaranteed_bytes = \"1GiB\"\n");
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  EXPECT_THAT(why_, HasSubstr("A restart takes this file: until then what it has no more, domain "
                              "'b', keeps what it has"));
  Write(domain + "borrow_priority = 9\n");
  for (const char* again : {"once", "twice"}) {
    const auto answer = Ask(ConfigAction::kReload);
    ASSERT_TRUE(answer) << why_;
    EXPECT_THAT(RestartKeys(*answer),
                UnorderedElementsAre("domain.a.kv_events", "domain.b.name", "domain.b.socket",
                                     "domain.b.dram_guaranteed_bytes"))
        << again;
    EXPECT_EQ(Get("domain.b.dram_guaranteed_bytes")["from"], "kept");
    EXPECT_EQ(config_.domains[1].dram_guaranteed_bytes, 512 * kMiB);
  }
}

// It would serve another one after a restart, and until then nobody who is not let in.
TEST_F(LiveConfigRestartTest, AFileWithoutDomainsLeavesThoseThatThereAre) {
  Start("[[domain]]\nname = \"a\"\nsocket = \"/a\"\nallow_uids = [7]\nttl_default_s = 60\n");
  Write("[daemon]\nlog_level = \"debug\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ(config_.log_level, LogLevel::kDebug);
  EXPECT_EQ(config_.domains[0].allow_uids, std::vector<uint32_t>{7});
  EXPECT_EQ(config_.domains[0].ttl_default_s, 60u);
  EXPECT_THAT(RestartKeys(*answer),
              UnorderedElementsAre("domain.default.socket", "domain.a.name", "domain.a.socket",
                                   "domain.a.allow_uids", "domain.a.ttl_default_s"));
}

TEST_F(LiveConfigRestartTest, AFileThatAStartWouldTakeIsRefusedWithTheReason) {
  Start(
      "[daemon]\ndram_bytes = \"2GiB\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\n"
      "dram_max_bytes = \"1GiB\"\n");
  EXPECT_EQ(Get("domain.a.dram_max_bytes")["from"], path() + ":6");
  Write(
      "[daemon]\ndram_bytes = \"2GiB\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\n"
      "dram_max_bytes = \"2GiB\"\ndram_guaranteed_bytes = \"1536MiB\"\n");
  EXPECT_FALSE(Ask(ConfigAction::kReload));
  EXPECT_THAT(why_, HasSubstr("A restart takes this file: until then keys that need one stay"));
}

TEST_F(LiveConfigRestartTest, WhatIsWorkedOutOfALineIsNotTheLines) {
  Start(
      "[daemon]\ndram_bytes = \"1GiB\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\n"
      "dram_max_bytes = \"4GiB\"\nkv_events = \"auto\"\n");
  EXPECT_EQ(Get("domain.a.dram_max_bytes")["from"], path() + ":6, worked out");
  EXPECT_EQ(Get("domain.a.kv_events")["from"], path() + ":7, worked out");
}

TEST_F(LiveConfigRestartTest, WhatIsOfATierThatIsNotThereCannotBeSet) {
  Start("[hbm]\ncapacity_bytes = \"256MiB\"\nhits_min = 9\n");
  EXPECT_EQ(Get("redis.use")["is_live"], false);
  EXPECT_EQ(Get("domain.default.nvme_max_bytes")["is_live"], false);
  EXPECT_EQ(Get("hbm.hits_min")["is_live"], true);
  Write("[redis]\nuse = \"fetch\"\n");
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_THAT((*answer)["changed"], IsEmpty());
  EXPECT_EQ(config_.hbm.hits_min, 9u) << "the tier is there until a restart";
  EXPECT_THAT(RestartKeys(*answer), UnorderedElementsAre("hbm.capacity_bytes", "hbm.hits_min"));
}

TEST_F(LiveConfigRestartTest, SaysWhatOfItIsNotTheFilesUntilARestart) {
  const std::string drive = "[nvme]\npaths = [\"/a\"]\ncapacity_bytes = \"8GiB\"\n";
  Start("[daemon]\nlog_queue_lines_max = 100\n" + drive + "slab_bytes = \"256MiB\"\n");
  EXPECT_EQ(Get("daemon.log_queue_lines_max")["from"], path() + ":2");
  Write("[daemon]\nlog_queue_lines_max = 200\ndram_bytes = \"9GiB\"\n");
  for (const char* again : {"once", "twice"}) {
    const auto answer = Ask(ConfigAction::kReload);
    ASSERT_TRUE(answer) << why_;
    EXPECT_THAT(RestartKeys(*answer),
                UnorderedElementsAre("daemon.log_queue_lines_max", "daemon.dram_bytes",
                                     "daemon.fenced_bytes_max", "nvme.paths", "nvme.capacity_bytes",
                                     "nvme.slab_bytes", "domain.default.dram_max_bytes",
                                     "domain.default.nvme_guaranteed_bytes",
                                     "domain.default.nvme_max_bytes"))
        << again;
    EXPECT_EQ(Get("daemon.log_queue_lines_max")["from"], "kept");
    EXPECT_EQ(Get("daemon.log_queue_lines_max")["value"], "100");
    EXPECT_EQ(Get("daemon.dram_bytes")["from"], "kept");
    EXPECT_EQ(Get("nvme.slab_bytes")["from"], "kept");
    EXPECT_EQ(Get("daemon.log_level")["from"], "default");
  }
  Write("[daemon]\nlog_queue_lines_max = 100\n" + drive);
  const auto answer = Ask(ConfigAction::kReload);
  ASSERT_TRUE(answer) << why_;
  EXPECT_EQ(Get("daemon.log_queue_lines_max")["from"], path() + ":2");
  EXPECT_EQ(Get("nvme.paths")["from"], path() + ":4");
  EXPECT_EQ(Get("nvme.slab_bytes")["from"], "kept") << "a start would work out another";
}

}  // namespace
}  // namespace terrace
