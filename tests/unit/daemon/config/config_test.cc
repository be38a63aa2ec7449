#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "config_fixture.h"
#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"
#include "test_paths.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ConfigText, EveryFormOfValueIsRead) {
  const DaemonConfig config = Parsed(R"(
[daemon]
log_level = "debug"
log_format = "json"
dram_bytes = "8GiB"
segment_bytes = 33554432
lease_ttl_ms = 5000
hugepages = "off"
[[domain]]
name = "a"
socket = "/run/a.sock"
socket_mode = "0600"
allow_uids = [1000, 1001]
writer_uids = [1001]
allow_gids = []
allow_models = ["meta-llama/*", "gpt-oss-*"]
key_hash = "sha256"
dram_guaranteed_bytes = "1 GiB"
[[domain]]
name = "b"
)");
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.dram_bytes, 8 * kGiB);
  EXPECT_EQ(config.segment_bytes, 32 * kMiB);
  EXPECT_EQ(config.lease_ttl_ms, 5000u);
  EXPECT_EQ(config.hugepages, HugePages::kOff);
  ASSERT_EQ(config.domains.size(), 2u);
  const DomainConfig& a = config.domains[0];
  EXPECT_EQ(a.socket_mode, 0600u);
  EXPECT_EQ(a.allow_uids, (std::vector<uint32_t>{1000, 1001}));
  EXPECT_EQ(a.allow_gids, std::vector<uint32_t>{});
  EXPECT_EQ(a.allow_models, (std::vector<std::string>{"meta-llama/*", "gpt-oss-*"}));
  EXPECT_EQ(a.key_hash, KeyHash::kSha256);
  EXPECT_EQ(a.dram_guaranteed_bytes, kGiB);
  EXPECT_EQ(a.writer_uids, (std::vector<uint32_t>{1001}));
  EXPECT_EQ(config.domains[1].allow_uids, std::nullopt) << "absent is not an empty list";
  EXPECT_EQ(config.domains[1].writer_uids, std::nullopt);
}

TEST(ConfigText, UnknownKeyIsRefusedWithTheNearestKnownOne) {
  EXPECT_THAT(Refusal("[daemon]\n\ndram_byte = 1\n"),
              AllOf(StartsWith("test.toml:3:"), HasSubstr("daemon.dram_byte is no known key"),
                    HasSubstr("nearest is daemon.dram_bytes")));
  EXPECT_THAT(Refusal("[[domain]]\nsecret = \"x\"\n"), HasSubstr("nearest is domain.secret_file"));
  EXPECT_THAT(Refusal("[[domain]]\nname = \"chat\"\nborow_priority = 1\n"),
              AllOf(HasSubstr("domain.chat.borow_priority is no known key"),
                    HasSubstr("nearest is domain.chat.borrow_priority")));
  EXPECT_THAT(Refusal("[[domain]]\nborrow_priority = 101\nname = \"chat\"\n"),
              HasSubstr("domain.chat.borrow_priority is 101; write"));
  EXPECT_THAT(Refusal("[[domain]]\nname = 7\n"), HasSubstr("domain.name is 7; write"));
  EXPECT_THAT(Refusal("[demon]\n"), HasSubstr("'demon' is no known section"));
  EXPECT_THAT(Refusal("[[daemon]]\n"), HasSubstr("'daemon' is a list; there is one of it, a "
                                                 "section: write [daemon]"));
  EXPECT_THAT(Refusal("redis = 7\n"), HasSubstr("'redis' is a value"));
  EXPECT_THAT(Refusal("[[domain]]\nsocket = \"/" + std::string(150, 'x') + "\"\n"),
              HasSubstr("a text in quotes of 1 to 107 bytes: it has 151"));
  EXPECT_THAT(Refusal("[daemon]\ndram_bytes = \"0.5TiB\"\n"),
              HasSubstr("a whole number of KiB, MiB, GiB or TiB"));
  EXPECT_THAT(Refusal("[domain]\nname = \"a\"\n"), HasSubstr("[[domain]]"));
}

std::string Repeated(const std::string& part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

TEST(ConfigText, NamesOfManyPartsAreRefusedByLineAndLimit) {
  const std::string parts = Repeated(".a", 1'000'000);
  for (const std::string& text :
       {"[a" + parts + "]\n", "[[a" + parts + "]]\n", "a" + parts + " = 1\n",
        "x = {b = 1.5, a" + parts + " = 1}\n", "\"q\"" + Repeated(" . 'a'", 1000) + " = 1\n",
        "x = [\"\"\"text\"\"\"\", {a" + parts + " = 1}]\n"}) {
    EXPECT_THAT(Refusal("[daemon]\n# a comment\nlog_level = \"\"\"\ndebug\"\"\"\n" + text),
                AllOf(StartsWith("test.toml:5: "), HasSubstr("more than 32 parts")));
    EXPECT_TRUE(ConfigLines(text).empty());
  }
}

TEST(ConfigText, DotsThatMakeNoNameAreNotCounted) {
  const std::string dots(1000, '.');
  Parsed("# " + dots + "\n[daemon]\nstate_dir = \"/" + std::string(40, '.') + "\"\n");
  const std::string texts = "\"\\\"" + dots + "\", '" + dots + "', \"\"\"\n\"" + dots +
                            "\"\"\", \x27\x27\x27\n" + dots + "\x27\x27\x27";
  EXPECT_THAT(Refusal("x = [" + Repeated("1.5, ", 1000) + texts + "]\n"),
              HasSubstr("'x' is no known section"));
}

TEST(ConfigText, RefusalNamesKeyValueLimitAndRemedy) {
  EXPECT_THAT(Refusal("[daemon]\nlease_ttl_ms = 5\n"),
              HasSubstr("test.toml:2: daemon.lease_ttl_ms is 5; write a whole number from 100 to "
                        "3600000"));
  EXPECT_THAT(Refusal("[daemon]\nlog_level = \"loud\"\n"),
              AllOf(HasSubstr("loud"), HasSubstr("one of \"error\" \"warn\" \"info\" \"debug\"")));
  EXPECT_THAT(Refusal("[[domain]]\nsocket_mode = 660\n"), HasSubstr("such as \"0660\""));
  EXPECT_THAT(Refusal("[[domain]]\nallow_uids = [\"root\"]\n"), HasSubstr("numeric ids"));
  EXPECT_THAT(Refusal("[daemon\n"), HasSubstr("test.toml:1: this is no TOML"));
}

TEST(ConfigText, OfBytesTheLimitsAndTheUnitsAreNamed) {
  const std::string wanted =
      "; write bytes, as a whole number or a whole number of KiB, MiB, GiB or TiB, such as "
      "\"8GiB\", from 2MiB to "
      "64TiB";
  EXPECT_EQ(Refusal("[daemon]\ndram_bytes = \"1GB\"\n"),
            "test.toml:2: daemon.dram_bytes is '1GB'" + wanted);
  for (const char* value : {"lots", "1GB", "8G", "0", "1", "65TiB", "-1"}) {
    EXPECT_EQ(Unresolvable("", {.dram_bytes = value}),
              "--dram-bytes is '" + std::string(value) + "'" + wanted);
  }
}

TEST(ConfigText, UnknownPolicyIsRefusedWithTheNearestOne) {
  EXPECT_EQ(Parsed("").eviction, "hazard");
  EXPECT_EQ(Parsed("").nvme.eviction, "lru");
  EXPECT_EQ(Parsed("[daemon]\neviction = \"arc\"\n").eviction, "arc");
  EXPECT_EQ(Parsed("[nvme]\neviction = \"s3fifo\"\n").nvme.eviction, "s3fifo");
  EXPECT_THAT(Refusal("[daemon]\neviction = \"lfru\"\n"),
              AllOf(HasSubstr("daemon.eviction is 'lfru'"),
                    HasSubstr("one of \"arc\" \"hazard\" \"lru\" \"s3fifo\""),
                    HasSubstr("the nearest is \"lru\"")));
  EXPECT_THAT(Refusal("[nvme]\nadmission = \"predict\"\n"),
              AllOf(HasSubstr("nvme.admission"), HasSubstr("the nearest is \"predicted\"")));
}

TEST(ConfigText, ANameThatIsNearNoneIsNotGuessed) {
  EXPECT_THAT(Refusal("[daemon]\nfrobnicate = 1\n"),
              AllOf(HasSubstr("daemon.frobnicate is no known key"), HasSubstr("--print-config"),
                    Not(HasSubstr("nearest"))));
  EXPECT_THAT(Refusal("[daemon]\neviction = \"belady\"\n"),
              AllOf(HasSubstr("one of \"arc\""), Not(HasSubstr("nearest"))));
}

TEST(ConfigText, TheRedisTableIsReadAndWhatWouldMeanNothingIsRefused) {
  EXPECT_FALSE(Parsed("").redis.is_on());
  const DaemonConfig config = Resolved(R"(
[redis]
endpoints = ["sentinel-0:26379", "[::1]:26379"]
mode = "sentinel"
master_name = "kv"
credentials_file = "/etc/terrace/redis"
tls = "on"
tls_server_name = "kv.example"
use = "fetch"
admission = "hit"
queue_bytes_max = "2GiB"
probe_timeout_us = 5000
drain_ms = 0
)");
  EXPECT_TRUE(config.redis.is_on());
  EXPECT_EQ(config.redis.endpoints.size(), 2u);
  EXPECT_EQ(config.redis.mode, RedisMode::kSentinel);
  EXPECT_EQ(config.redis.use, RedisUse::kFetch);
  EXPECT_EQ(config.redis.admission, RedisAdmission::kHit);
  EXPECT_EQ(config.redis.queue_bytes_max, 2 * kGiB);
  EXPECT_EQ(config.redis.probe_timeout_us, 5000u);
  EXPECT_EQ(config.redis.drain_ms, 0u);

  EXPECT_THAT(Refusal("[redis]\npassword = \"x\"\n"), HasSubstr("redis.password is no known key"));
  EXPECT_THAT(Refusal("[redis]\nttl_s = 0\n"), HasSubstr("from 10 to 31536000"));
  EXPECT_THAT(Unresolvable("[redis]\nendpoints = [\"a:1\", \"b:1\"]\n"),
              AllOf(HasSubstr("redis.endpoints names 2 servers"), HasSubstr("name one")));
  EXPECT_THAT(Unresolvable("[redis]\nendpoints = [\"a:1\"]\nmode = \"sentinel\"\n"),
              HasSubstr("redis.master_name is not set"));
  EXPECT_THAT(Unresolvable("[redis]\nendpoints = [\"a:1\"]\nmaster_name = \"kv\"\n"),
              HasSubstr("means nothing without mode = \"sentinel\""));
  EXPECT_THAT(Unresolvable("[redis]\nendpoints = [\"a:1\"]\ntls_ca_file = \"/ca\"\n"),
              HasSubstr("means nothing without tls = \"on\""));
  EXPECT_THAT(Unresolvable("[redis]\ncredentials_file = \"/c\"\n"),
              HasSubstr("means nothing without redis.endpoints"));
  EXPECT_THAT(Unresolvable("[redis]\nendpoints = [\"a:1\"]\nprefix = \"{x}\"\n"),
              HasSubstr("braces"));
}

TEST(ConfigText, EveryCountAndSizeRefusesWhatIsOutOfRange) {
  for (const char* value :
       {"-1", "1.5", "true", "\"\"", "\"8GB\"", "\"99999999TiB\"", "9223372036854775807"}) {
    EXPECT_THAT(Refusal("[daemon]\ndram_bytes = " + std::string(value) + "\n"),
                HasSubstr("daemon.dram_bytes is"))
        << value;
  }
  for (const char* key : {"sessions_max", "blocks_max", "offload_threads", "lease_ttl_ms"}) {
    for (const char* value : {"0", "-1", "4294967296", "\"7\"", "1.0", "[1]"}) {
      EXPECT_THAT(Refusal("[daemon]\n" + std::string(key) + " = " + value + "\n"),
                  HasSubstr("a whole number from"))
          << key << " = " << value;
    }
  }
}

TEST(ConfigText, WhatIsPrintedReadsBackEqual) {
  const DaemonConfig config = Resolved(R"(
[daemon]
dram_bytes = "2GiB"
[[domain]]
name = "a"
socket = "/run/with \"quotes\".sock"
allow_uids = [7]
)");
  const std::string printed = PrintConfig(config);
  EXPECT_THAT(printed, HasSubstr("dram_bytes = \"2GiB\""));
  EXPECT_EQ(PrintConfig(Parsed(printed)), printed);
}

TEST(ConfigText, BytesAreReadWithBinaryUnitsOnly) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("512 MiB").value(), 512 * kMiB);
  EXPECT_EQ(ParseBytes("1TiB").value(), 1024 * kGiB);
  for (const char* text : {"", "GiB", "8GB", "8gib", "-1", "1.5GiB", "8GiB ", "16777216TiB"}) {
    EXPECT_EQ(ParseBytes(text).code(), StatusCode::kInvalid) << text;
  }
  EXPECT_EQ(FormatBytes(8 * kGiB), "8GiB");
  EXPECT_EQ(FormatBytes(kGiB + 1), "1073741825");
  EXPECT_EQ(FormatBytes(0), "0");
}

TEST(ConfigDefaults, WithoutAFileThereIsOneDomain) {
  const DaemonConfig config = Resolved("");
  ASSERT_EQ(config.domains.size(), 1u);
  EXPECT_EQ(config.domains[0].name, "default");
  EXPECT_EQ(config.domains[0].socket_path, "/run/user/1000/terrace/default.sock");
  EXPECT_EQ(config.domains[0].secret_file, "/home/u/.local/state/terrace/default.secret");
  EXPECT_EQ(config.domains[0].dram_max_bytes, config.dram_bytes);
  EXPECT_EQ(config.fenced_bytes_max, config.dram_bytes / 4);
}

TEST(ConfigDefaults, ASecretFileIsTheDefaultWhoeverNamesIt) {
  const auto is_default = [](const std::string& file) {
    const std::string text = "[daemon]\nstate_dir = \"/s\"\n[[domain]]\nname = \"a\"\n";
    return Resolved(text + "socket = \"/s/a.sock\"\nsecret_file = \"" + file + "\"\n")
        .domains.at(0)
        .is_secret_file_default;
  };
  EXPECT_TRUE(is_default("/s/a.secret"));
  EXPECT_FALSE(is_default("/s/other.secret"));
}

TEST(ConfigDefaults, RootAndSystemdHaveTheirOwnPlaces) {
  DaemonConfig config = Resolved("", {}, {.uid = 0});
  EXPECT_EQ(config.domains[0].socket_path, "/run/terrace/default.sock");
  EXPECT_EQ(config.state_dir, "/var/lib/terrace");
  config = Resolved("", {}, {.uid = 0, .state_directory = "/var/lib/private/terrace:/x"});
  EXPECT_EQ(config.state_dir, "/var/lib/private/terrace");
}

TEST(ConfigDefaults, ASocketOnTheCommandLineKeepsItsStateBesideIt) {
  const DaemonConfig config =
      Resolved("", {.socket_path = "/tmp/x/t.sock", .dram_bytes = "512MiB"}, {.uid = 1000});
  EXPECT_EQ(config.domains[0].socket_path, "/tmp/x/t.sock");
  EXPECT_EQ(config.domains[0].secret_file, "/tmp/x/default.secret");
  EXPECT_EQ(config.dram_bytes, 512 * kMiB);
}

TEST(ConfigDefaults, WithoutAPlaceForTheSocketItSaysSo) {
  EXPECT_THAT(Unresolvable("", {}, {.uid = 1000}), HasSubstr("--socket"));
}

TEST(ConfigAcrossKeys, EachContradictionIsRefusedWithBothValues) {
  const std::string two = "[[domain]]\nname=\"a\"\nsocket=\"/a\"\n[[domain]]\nname=\"b\"\nsocket=";
  EXPECT_THAT(Unresolvable("[daemon]\ndram_bytes=\"128MiB\"\n"),
              AllOf(HasSubstr("128MiB"), HasSubstr("256MiB"), HasSubstr("raise dram_bytes")));
  EXPECT_THAT(Unresolvable("[daemon]\nsegment_bytes=\"96MiB\"\n"), HasSubstr("power of two"));
  EXPECT_THAT(Unresolvable("[daemon]\ndram_bytes=\"256MiB\"\n" + two + "\"/b\"\n"),
              HasSubstr("each domain (there are 2)"));
  EXPECT_THAT(Unresolvable(two + "\"/a\"\n"), HasSubstr("another domain's"));
  EXPECT_THAT(Unresolvable(two + "\"//x/..///a\"\n"), HasSubstr("another domain's"));
  EXPECT_THAT(Unresolvable(two + "\"/b\"\ndram_guaranteed_bytes=\"2GiB\"\n"),
              AllOf(HasSubstr("domain b"), HasSubstr("2GiB"), HasSubstr("1GiB")));
  EXPECT_THAT(
      Unresolvable("[daemon]\nsegment_bytes=\"256MiB\"\ndram_bytes=\"1GiB\"\n"
                   "[[domain]]\nname=\"a\"\nsocket=\"/a\"\ndram_guaranteed_bytes=\"800MiB\"\n"
                   "[[domain]]\nname=\"b\"\nsocket=\"/b\"\ndram_guaranteed_bytes=1\n"),
      AllOf(HasSubstr("sum to 1280MiB"), HasSubstr("1GiB")));
  EXPECT_THAT(Unresolvable(two + "\"/b\"\n", {.socket_path = "/c"}), HasSubstr("has 2"));
  EXPECT_THAT(Unresolvable("[[domain]]\nname=\"A b\"\nsocket=\"/a\"\n"), HasSubstr("'A b'"));
  EXPECT_THAT(Unresolvable("[[domain]]\nname=\"a\"\nsocket=\"a.sock\"\n"),
              HasSubstr("absolute path"));
  EXPECT_THAT(Unresolvable("[daemon]\ndeadline_default_ms=2000\ndeadline_ms_max=1000\n"),
              HasSubstr("deadline_ms_max of 1000"));
  EXPECT_THAT(Unresolvable("", {.dram_bytes = "lots"}), HasSubstr("--dram-bytes is 'lots'"));
}

TEST(ConfigAcrossKeys, WhatIsWrongWithADomainIsToldWithWhereItsTableBegins) {
  const std::string a = "[[domain]]\nname=\"a\"\nsocket=\"/a\"\n";  // three lines
  const std::string b = "[[domain]]\nname=\"b\"\nsocket=\"/b\"\n";
  const auto at = [](uint32_t line) {
    return StartsWith("test.toml:" + std::to_string(line) + ": ");
  };
  EXPECT_THAT(Unresolvable(a + a), AllOf(at(4), HasSubstr("is there twice")));
  EXPECT_THAT(Unresolvable(a + "[[domain]]\nname=\"B\"\n"), AllOf(at(4), HasSubstr("'B'")));
  EXPECT_THAT(Unresolvable(a + "[[domain]]\nsocket=\"/b\"\n"), AllOf(at(4), HasSubstr("''")));
  EXPECT_THAT(Unresolvable("\n" + a + "[[domain]]\nname=\"b\"\nsocket=\"/a\"\n"),
              AllOf(at(5), HasSubstr("another domain's")));
  EXPECT_THAT(Unresolvable(a + "[[domain]]\nname=\"b\"\nsocket=\"b\"\n"),
              AllOf(at(4), HasSubstr("absolute path")));
  EXPECT_THAT(Unresolvable(a + b + "dram_lent_bytes_max=\"1MiB\"\n"),
              AllOf(at(4), HasSubstr("it can lend")));
  EXPECT_THAT(Unresolvable(a + b + "dram_guaranteed_bytes=\"2GiB\"\n"),
              AllOf(at(4), HasSubstr("dram_guaranteed_bytes is 2GiB")));
  EXPECT_THAT(Unresolvable(a + b + "dram_max_bytes=\"2MiB\"\n"),
              AllOf(at(4), HasSubstr("needs one segment at least")));
  const std::string nvme = "[nvme]\npaths=[\"/mnt/a\"]\ncapacity_bytes=\"8GiB\"\n";
  EXPECT_THAT(Unresolvable(nvme + a + b + "nvme_max_bytes=\"4MiB\"\n"),
              AllOf(at(7), HasSubstr("a domain needs one slab at least")));
  EXPECT_THAT(Unresolvable(nvme + a + "nvme_max_bytes=\"1GiB\"\nnvme_guaranteed_bytes=\"2GiB\"\n"),
              AllOf(at(4), HasSubstr("nvme_guaranteed_bytes is 2GiB")));
  EXPECT_THAT(Unresolvable(a + "redis_guaranteed_bytes=\"1GiB\"\n"),
              AllOf(at(1), HasSubstr("redis_guaranteed_bytes is 1GiB")));
}

TEST(ConfigNvme, PathsAndSharesAreResolved) {
  const std::string drives = "[nvme]\npaths = [\"/a\", \"/b\"]\ncapacity_bytes = \"10GiB\"\n";
  const DaemonConfig config =
      Resolved(drives +
               "io = \"threads\"\n[[domain]]\nname = \"x\"\nsocket = \"/x\"\n"
               "[[domain]]\nname = \"y\"\nsocket = \"/y\"\nnvme_max_bytes = \"2GiB\"\n");
  EXPECT_EQ(config.nvme.paths, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(config.nvme.io, DiskIo::kThreads);
  EXPECT_EQ(config.domains[0].nvme_max_bytes, 5 * kGiB);
  EXPECT_EQ(config.domains[1].nvme_max_bytes, 2 * kGiB);
  EXPECT_FALSE(Resolved("").nvme.is_on());
  EXPECT_EQ(Parsed(PrintConfig(config)).nvme.paths, config.nvme.paths);
}

TEST(ConfigNvme, SlabsOfASmallTierAreSmallEnoughForSeveralSizesOfBlocks) {
  const auto slab_bytes = [](const std::string& capacity, const std::string& more = "") {
    return Resolved("[nvme]\npaths = [\"/a\"]\ncapacity_bytes = \"" + capacity + "\"\n" + more)
        .nvme.slab_bytes;
  };
  EXPECT_EQ(slab_bytes("500GiB"), kGiB);
  EXPECT_EQ(slab_bytes("8GiB"), kGiB);
  EXPECT_EQ(slab_bytes("7GiB"), 512 * kMiB) << "eight at least";
  EXPECT_EQ(slab_bytes("1GiB"), 128 * kMiB);
  EXPECT_EQ(slab_bytes("64MiB"), 64 * kMiB);
  EXPECT_EQ(slab_bytes("1GiB", "slab_bytes = \"1GiB\"\n"), kGiB) << "who names it has it";
  std::string domains;
  for (const char* name : {"a", "b", "c", "d"}) {
    domains += "[[domain]]\nname = \"" + std::string(name) + "\"\nsocket = \"/" + name + "\"\n";
  }
  EXPECT_EQ(slab_bytes("8GiB", domains), 512 * kMiB) << "four at least of each domain";
}

TEST(ConfigNvme, FilesOfALargeTierAreSoLargeThatItsPathsHoldThem) {
  const std::string paths = "[nvme]\npaths = [\"/a\"]\ncapacity_bytes = ";
  const auto slab_bytes = [&](const std::string& capacity) {
    return Resolved(paths + "\"" + capacity + "\"\n").nvme.slab_bytes;
  };
  EXPECT_EQ(slab_bytes("4TiB"), kGiB);
  EXPECT_EQ(slab_bytes("4097GiB"), 2 * kGiB);
  EXPECT_EQ(slab_bytes("7TiB"), 2 * kGiB);
  EXPECT_EQ(slab_bytes("64TiB"), 16 * kGiB);
  EXPECT_THAT(Unresolvable(paths + "\"65TiB\"\n"),
              AllOf(HasSubstr("nvme.capacity_bytes is 65TiB"), HasSubstr("name more paths"),
                    HasSubstr("lower nvme.capacity_bytes to 64TiB")));
  EXPECT_THAT(Unresolvable(paths + "\"7TiB\"\nslab_bytes = \"1GiB\"\n"),
              AllOf(HasSubstr("nvme.capacity_bytes is 7TiB, nvme.slab_bytes is 1GiB and nvme.paths "
                              "names 1: a path has 4096 files of a domain at most"),
                    HasSubstr("raise slab_bytes to 2GiB, or lower nvme.capacity_bytes to 4TiB")));
}

TEST(ConfigNvme, FilesAreCountedByDomain) {
  const std::string tier = "[nvme]\npaths = [\"/a\"]\nslab_bytes = \"1GiB\"\ncapacity_bytes = ";
  const std::string x = "[[domain]]\nname = \"x\"\nsocket = \"/x\"\n";
  const std::string y = "[[domain]]\nname = \"y\"\nsocket = \"/y\"\n";
  EXPECT_EQ(Resolved(tier + "\"8TiB\"\n" + x + y).domains[0].nvme_max_bytes, 4096 * kGiB);
  EXPECT_THAT(Unresolvable(tier + "\"9TiB\"\n" + x + y),
              AllOf(HasSubstr("nvme.capacity_bytes is 9TiB"),
                    HasSubstr("lower nvme.capacity_bytes to 8TiB")));
  EXPECT_THAT(Unresolvable(tier + "\"8TiB\"\n" + x + "nvme_max_bytes = \"5TiB\"\n"),
              AllOf(HasSubstr("domain x: nvme_max_bytes is 5TiB"),
                    HasSubstr("lower domain x: nvme_max_bytes to 4TiB")));
}

TEST(ConfigNvme, WhoNamesAGuaranteeBorrowsUpToAllThereIs) {
  const std::string drives = "[nvme]\npaths = [\"/a\"]\ncapacity_bytes = \"10GiB\"\n";
  const std::string x = "[[domain]]\nname = \"x\"\nsocket = \"/x\"\n";
  const std::string y = "[[domain]]\nname = \"y\"\nsocket = \"/y\"\n";
  const DaemonConfig config = Resolved(drives + x + "nvme_guaranteed_bytes = \"6GiB\"\n" + y +
                                       "nvme_max_bytes = \"4GiB\"\n");
  EXPECT_EQ(config.domains[0].nvme_guaranteed_bytes, 6 * kGiB);
  EXPECT_EQ(config.domains[0].nvme_max_bytes, 10 * kGiB);
  EXPECT_EQ(config.domains[1].nvme_guaranteed_bytes, 4 * kGiB) << "who names a limit has it";
  const DaemonConfig plain = Resolved(drives + x + y);
  EXPECT_EQ(plain.domains[0].nvme_guaranteed_bytes, 5 * kGiB) << "who names neither, a share";
  EXPECT_EQ(plain.domains[0].nvme_max_bytes, 5 * kGiB) << "which it neither lends nor exceeds";

  EXPECT_THAT(Unresolvable(drives + x + "nvme_guaranteed_bytes = \"6GiB\"\n" + y),
              AllOf(HasSubstr("sum to 11GiB"), HasSubstr("nvme.capacity_bytes of 10GiB")));
  EXPECT_THAT(
      Unresolvable(drives + x + "nvme_guaranteed_bytes = \"3GiB\"\nnvme_max_bytes = \"2GiB\"\n"),
      AllOf(HasSubstr("domain x: nvme_guaranteed_bytes is 3GiB"),
            HasSubstr("nvme_max_bytes of 2GiB"), HasSubstr("lower one")));
  EXPECT_THAT(Unresolvable(drives + x + "nvme_guaranteed_bytes = \"8MiB\"\n"),
              AllOf(HasSubstr("nvme_guaranteed_bytes is 8MiB"), HasSubstr("one slab")));
}

TEST(ConfigRedis, SharesArePartsOfWhatThisHostGives) {
  const std::string server = "[redis]\nendpoints = [\"h:1\"]\ncapacity_bytes = \"10GiB\"\n";
  const std::string x = "[[domain]]\nname = \"x\"\nsocket = \"/x\"\n";
  const DaemonConfig config = Resolved(server + x + "redis_guaranteed_bytes = \"4GiB\"\n");
  EXPECT_EQ(config.domains[0].redis_max_bytes, 10 * kGiB);
  EXPECT_THAT(
      Unresolvable(server + x + "redis_guaranteed_bytes = \"11GiB\"\n"),
      AllOf(HasSubstr("redis_guaranteed_bytes is 11GiB"), HasSubstr("redis_max_bytes of 10GiB")));
  EXPECT_THAT(Unresolvable(server + x + "redis_guaranteed_bytes = \"6GiB\"\n" +
                           "[[domain]]\nname = \"y\"\nsocket = \"/y\"\n" +
                           "redis_guaranteed_bytes = \"5GiB\"\n"),
              AllOf(HasSubstr("sum to 11GiB"), HasSubstr("redis.capacity_bytes of 10GiB")));
  EXPECT_THAT(
      Unresolvable("[redis]\nendpoints = [\"h:1\"]\n" + x + "redis_guaranteed_bytes = \"1GiB\"\n"),
      HasSubstr("means nothing without redis.capacity_bytes"));
}

TEST(ConfigNvme, WhatCannotBeIsRefused) {
  const std::string path = "[nvme]\npaths = [\"/a\"]\n";
  EXPECT_THAT(Unresolvable(path), HasSubstr("nvme.capacity_bytes is not"));
  EXPECT_THAT(Unresolvable("[nvme]\ncapacity_bytes = \"1GiB\"\n"), HasSubstr("nvme.paths"));
  EXPECT_THAT(Unresolvable("[nvme]\npaths = [\"a\"]\ncapacity_bytes = \"1GiB\"\n"),
              HasSubstr("'a'"));
  for (const std::string again : {"/a", "/a/", "/./a", "//a", "/b/../a"}) {
    EXPECT_THAT(
        Unresolvable("[nvme]\npaths = [\"/a\", \"" + again + "\"]\ncapacity_bytes = \"1GiB\"\n"),
        HasSubstr("holds '" + again + "' twice"));
  }
  const std::string slab = "slab_bytes = \"1GiB\"\n";
  EXPECT_THAT(Unresolvable(path + "capacity_bytes = \"32MiB\"\n"), HasSubstr("one slab"));
  EXPECT_THAT(
      Unresolvable("[nvme]\npaths = [\"/a\", \"/b\", \"/c\"]\ncapacity_bytes = \"2GiB\"\n" + slab),
      AllOf(HasSubstr("nvme.capacity_bytes is 2GiB, nvme.slab_bytes is 1GiB and nvme.paths "
                      "names 3: a path needs one slab at least"),
            HasSubstr("raise capacity_bytes to 3GiB")));
  EXPECT_THAT(Unresolvable(path + slab +
                           "capacity_bytes = \"1GiB\"\n[[domain]]\nname=\"x\"\n"
                           "socket=\"/x\"\n[[domain]]\nname=\"y\"\nsocket=\"/y\"\n"),
              HasSubstr("domain x: its equal share of nvme.capacity_bytes is 512MiB"));
  EXPECT_THAT(Unresolvable(path + "capacity_bytes = \"8GiB\"\nslab_bytes = 5000000\n"),
              HasSubstr("multiple of 1 MiB"));
  EXPECT_THAT(Unresolvable(path + "capacity_bytes = \"4GiB\"\n[[domain]]\nname=\"x\"\n"
                                  "socket=\"/x\"\nnvme_max_bytes = \"5GiB\"\n"),
              HasSubstr("sum to 5GiB"));
  EXPECT_THAT(Refusal("[nvme]\npaths = \"/a\"\n"), HasSubstr("a list of 1 to 16"));
  EXPECT_THAT(Refusal("[nvme]\npath = [\"/a\"]\n"), HasSubstr("nvme.paths"));
}

// What a caller hands over as one key and its value has no lines that anybody wrote.
TEST(ConfigText, ARefusalNamesItsLineOnlyOfATextThatHasAName) {
  std::string deep = "\na";
  for (int i = 0; i < 100; ++i) deep += ".a";
  for (const std::string& text :
       {std::string("[daemon]\nlog_levl = \"info\"\n"), std::string("[daemon]\nlog_level = 7\n"),
        std::string("\nlog = 1\n"), std::string("\ndomain = 1\n"), std::string("\nlog_level = \n"),
        deep + " = 1\n"}) {
    DaemonConfig config;
    std::string why;
    EXPECT_EQ(ParseConfig(text, "", &config, &why).code(), StatusCode::kInvalid) << text;
    EXPECT_EQ(Refusal(text), "test.toml:2: " + why);
  }
}

TEST(ConfigFile, AMissingFileIsNamed) {
  DaemonConfig config;
  std::string why;
  EXPECT_EQ(ReadConfigFile("/nonexistent/t.toml", &config, &why).code(), StatusCode::kNotFound);
  EXPECT_THAT(why, AllOf(HasSubstr("/nonexistent/t.toml"), HasSubstr("--config")));
}

std::string DirectoryForTest() {
  std::string directory =
      (std::filesystem::temp_directory_path() / "terrace-config-XXXXXX").string();
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  return directory;
}

TEST(ConfigFile, APipeIsReadWhileSomebodyWritesAndRefusedWhenNobodyDoes) {
  const std::string directory = DirectoryForTest(), pipe = directory + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  DaemonConfig config;
  std::string why;
  std::thread writer([&] {
    std::ofstream file(pipe);
    file << "[daemon]\n" << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    file << "sessions_max = 77\n";
  });
  EXPECT_TRUE(ReadConfigFile(pipe, &config, &why).ok()) << why;
  writer.join();
  EXPECT_EQ(config.sessions_max, 77u);
  EXPECT_EQ(ReadConfigFile(pipe, &config, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, AllOf(HasSubstr(pipe), HasSubstr("was not written to its end within 4 s"),
                         HasSubstr("--config")));
  std::filesystem::remove_all(directory);
}

TEST(ConfigFile, APipeThatIsClosedUnwrittenIsNoEmptyConfiguration) {
  const std::string directory = DirectoryForTest(), pipe = directory + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text, why;
  std::thread writer([&] { std::ofstream file(pipe); });
  EXPECT_EQ(ReadConfigText(pipe, &text, &why).code(), StatusCode::kInvalid);
  writer.join();
  EXPECT_THAT(why, AllOf(HasSubstr(pipe), HasSubstr("closed before anything was written"),
                         HasSubstr("--config")));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  close(ends[1]);  // as a reload finds it
  const std::string reopened = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(ReadConfigText(reopened, &text, &why).code(), StatusCode::kInvalid);
  close(ends[0]);
  std::ofstream(directory + "/empty.toml").close();
  EXPECT_TRUE(ReadConfigText(directory + "/empty.toml", &text, &why).ok()) << why;
  std::filesystem::remove_all(directory);
}

TEST(ConfigFile, ASignalIsNoEndOfAPipe) {
  const std::string directory = DirectoryForTest(), pipe = directory + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  struct sigaction handled {
  }, before{};
  handled.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &handled, &before), 0);
  const pthread_t reader = pthread_self();
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) {
      pthread_kill(reader, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::ofstream(pipe) << "[daemon]\nsessions_max = 77\n";
  });
  DaemonConfig config;
  std::string why;
  EXPECT_TRUE(ReadConfigFile(pipe, &config, &why).ok()) << why;
  {
    const std::fstream both(pipe, std::ios::in | std::ios::out);  // the writer waits for a reader
    writer.join();
  }
  EXPECT_EQ(config.sessions_max, 77u);
  sigaction(SIGUSR1, &before, nullptr);
  std::filesystem::remove_all(directory);
}

TEST(ConfigFile, ADirectoryIsNone) {
  const std::string directory = DirectoryForTest();
  DaemonConfig config;
  std::string why;
  EXPECT_EQ(ReadConfigFile(directory, &config, &why).code(), StatusCode::kIo);
  EXPECT_THAT(why, AllOf(HasSubstr(directory), HasSubstr("directory"), HasSubstr("--config")));
  std::filesystem::remove_all(directory);
}

TEST(ConfigFile, OneThatIsTooLongIsRefused) {
  const std::string directory = DirectoryForTest();
  const std::string path = directory + "/t.toml";
  std::string text, why;
  std::ofstream(path) << std::string(1 << 20, '\n');
  EXPECT_TRUE(ReadConfigText(path, &text, &why).ok()) << why;
  EXPECT_EQ(text.size(), 1u << 20);
  std::ofstream(path, std::ios::app) << '\n';
  EXPECT_EQ(ReadConfigText(path, &text, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("larger than 1MiB"));
  std::filesystem::remove_all(directory);
}

std::string SourceFile(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(std::string(TERRACE_SOURCE_DIR) + "/" + path).rdbuf();
  return content.str();
}

TEST(ConfigDocuments, EveryKeyIsDocumentedInOneTable) {
  const std::string page = SourceFile("docs/OPERATIONS.md");
  ASSERT_FALSE(page.empty());
  for (const std::string& name : ConfigKeyNames()) {
    const size_t dot = name.find('.');
    const size_t begin = page.find("### [" + name.substr(0, dot));
    const size_t begin_of_list = page.find("### [[" + name.substr(0, dot));
    const size_t section = std::min(begin, begin_of_list);
    ASSERT_NE(section, page.npos) << name << " has no section in docs/OPERATIONS.md";
    const std::string table = page.substr(section, page.find("\n###", section) - section);
    const std::string row = "\n| `" + name.substr(dot + 1) + "` |";
    const size_t first = table.find(row);
    ASSERT_NE(first, table.npos) << name << " has no row in docs/OPERATIONS.md";
    EXPECT_EQ(table.find(row, first + 1), table.npos) << name << " is documented twice";
  }
}

// What the table of keys says of a key, the document says, too.
TEST(ConfigDocuments, LiveKeysAreMarkedAndNoOthers) {
  const std::string page = SourceFile("docs/OPERATIONS.md");
  DaemonConfig config;
  config.domains.emplace_back().name = "chat";
  size_t live_count = 0;
  for (const ConfigEntry& entry : ConfigEntries(config)) {
    const std::string section = entry.key.substr(0, entry.key.find('.'));
    const std::string name = entry.key.substr(entry.key.rfind('.') + 1);
    const size_t begin = std::min(page.find("### [" + section), page.find("### [[" + section));
    const size_t row = page.find("\n| `" + name + "` |", begin);
    ASSERT_NE(row, page.npos) << entry.key;
    const std::string line = page.substr(row + 1, page.find('\n', row + 1) - row - 1);
    EXPECT_EQ(line.find("*Live.*") != line.npos, entry.is_live) << line;
    live_count += entry.is_live ? 1 : 0;
  }
  EXPECT_GT(live_count, 20u);
}

TEST(ConfigLive, CopiesLiveKeysAndNoOthers) {
  const DaemonConfig from = Parsed(
      "[daemon]\nlog_level = \"debug\"\ngroups_max = 7\n[nvme]\nread_ahead_blocks = 3\n"
      "slab_bytes = \"8MiB\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\nallow_uids = [7]\n"
      "writer_uids = []\n[[domain]]\nname = \"other\"\nsocket = \"/o\"\n");
  DaemonConfig to = Parsed("[[domain]]\nname = \"a\"\nsocket = \"/here\"\n");
  EXPECT_TRUE(CopyLive(from, "", &to).ok());
  EXPECT_EQ(to.log_level, LogLevel::kDebug);
  EXPECT_EQ(to.nvme.read_ahead_blocks, 3u);
  EXPECT_EQ(to.domains[0].allow_uids, (std::vector<uint32_t>{7}));
  EXPECT_TRUE(to.domains[0].writer_uids.has_value());
  EXPECT_EQ(to.groups_max, DaemonConfig().groups_max);
  EXPECT_EQ(to.nvme.slab_bytes, NvmeConfig().slab_bytes);
  EXPECT_EQ(to.domains[0].socket_path, "/here");
  EXPECT_EQ(to.domains.size(), 1u);

  DaemonConfig one = Parsed("[[domain]]\nname = \"a\"\nsocket = \"/here\"\n");
  EXPECT_TRUE(CopyLive(from, "domain.a.allow_uids", &one).ok());
  EXPECT_TRUE(one.domains[0].allow_uids.has_value());
  EXPECT_EQ(one.log_level, LogLevel::kInfo);
  for (const char* key : {"daemon.groups_max", "domain.b.allow_uids", "daemon.nothing"}) {
    EXPECT_EQ(CopyLive(from, key, &one).code(), StatusCode::kNotFound) << key;
  }
}

TEST(ConfigLive, KnowsTheLineOfEachKey) {
  const auto lines =
      ConfigLines("[daemon]\n\nlog_level = \"debug\"\n[[domain]]\nname = \"a\"\nsocket = \"/a\"\n");
  EXPECT_EQ(lines.at("daemon.log_level"), 3u);
  EXPECT_EQ(lines.at("domain.a.socket"), 6u);
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_TRUE(ConfigLines("no TOML").empty());
}

TEST(ConfigHbm, NamesADeviceAndAPluginByAnAbsolutePath) {
  for (const char* device : {"host", "cuda:0", "cuda:GPU-0123abcd-4567-89ef-0000-5e5e5e5e5e01"}) {
    const DaemonConfig config =
        Resolved("[hbm]\ndevice = \"" + std::string(device) + "\"\ncapacity_bytes = \"1GiB\"\n");
    EXPECT_THAT(config.hbm.plugin_path, HasSubstr("/terrace/libterrace_cuda.so")) << "by default";
  }
  EXPECT_THAT(Unresolvable("[hbm]\ndevice = \"gpu0\"\n"),
              AllOf(HasSubstr("hbm.device is 'gpu0'"), HasSubstr("cuda:<index>"),
                    HasSubstr("nvidia-smi -L")));
  EXPECT_THAT(Unresolvable("[hbm]\nplugin_path = \"libterrace_cuda.so\"\n"),
              AllOf(HasSubstr("hbm.plugin_path is 'libterrace_cuda.so'"), HasSubstr("absolute")));
}

TEST(ConfigDocuments, TheShippedConfigurationShowsEveryKeyAndIsValid) {
  const std::string shipped = SourceFile("systemd/terraced.toml");
  DaemonConfig config = Parsed(shipped);
  std::string why;
  EXPECT_TRUE(ResolveConfig({}, {.uid = 0}, &config, &why).ok()) << why;
  for (const std::string& name : ConfigKeyNames()) {
    EXPECT_THAT(shipped, HasSubstr(name.substr(name.find('.') + 1) + " = "));
  }
}

}  // namespace
}  // namespace terrace
