#include "daemon/telemetry/conditions.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/telemetry/metrics.h"
#include "terrace/units.h"
#include "test_paths.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A domain with every tier, of which all is well.
DomainFigures Well() {
  DomainFigures figures;
  figures.fenced_bytes_max = 8 * kMiB;
  figures.lower_tiers.push_back({.kind = TierKind::kNvme, .stats = {.capacity_bytes = kGiB}});
  figures.shared = DomainFigures::SharedStats{};
  figures.shared->tier.is_ready = true;
  return figures;
}

const std::optional<KvEventCounters> kTold = KvEventCounters{.is_on = true};

std::vector<Condition> ConditionsOf(const DomainFigures& figures) {
  std::vector<Condition> conditions;
  for (const Trouble& trouble : TroublesOf(figures, kTold)) conditions.push_back(trouble.condition);
  return conditions;
}

std::string OnlySentence(const DomainFigures& figures) {
  const std::vector<Trouble> troubles = TroublesOf(figures, kTold);
  return troubles.size() == 1 ? troubles[0].sentence : std::to_string(troubles.size());
}

DriveTrouble OffDrive() {
  return {.path = "/mnt/a/chat",
          .is_off = true,
          .operation = "write",
          .error = EIO,
          .failures_in_row = 8,
          .off_count = 1};
}

std::string SourceFile(const std::string& path) {
  std::ifstream file(std::string(TERRACE_SOURCE_DIR) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What makes each condition hold, of a domain of which all else is well.
const std::map<Condition, std::function<void(DomainFigures*)>> kCauses = {
    {Condition::kBypassed, [](DomainFigures* f) { f->serving = protocol::ServingMode::kBypassed; }},
    {Condition::kDraining, [](DomainFigures* f) { f->serving = protocol::ServingMode::kDraining; }},
    {Condition::kArenaShort, [](DomainFigures* f) { f->arena_shortage = "there is none"; }},
    {Condition::kDriveOff,
     [](DomainFigures* f) { f->lower_tiers[0].troubles.push_back(OffDrive()); }},
    {Condition::kDriveFull,
     [](DomainFigures* f) {
       f->lower_tiers[0].troubles.push_back(
           {.path = "/mnt/a/chat", .operation = "creation of a file", .error = ENOSPC});
     }},
    {Condition::kDriveNotMounted,
     [](DomainFigures* f) {
       f->lower_tiers[0].troubles.push_back({.path = "/mnt/a/chat", .lost_mount = "/mnt/a"});
     }},
    {Condition::kDriveLosesPlaces,
     [](DomainFigures* f) { f->lower_tiers[0].stats.quarantined_bytes = kGiB / 50; }},
    {Condition::kSlabsLeftAlone,
     [](DomainFigures* f) { f->lower_tiers[0].stats.left_alone_bytes = 1; }},
    {Condition::kTierAboveLimit,
     [](DomainFigures* f) { f->lower_tiers[0].stats.share.above_bytes = 1; }},
    {Condition::kBlocksTooLarge,
     [](DomainFigures* f) { f->lower_tiers[0].stats.too_large_bytes = 1; }},
    {Condition::kFilesAtLimit,
     [](DomainFigures* f) { f->lower_tiers[0].stats.is_at_files_limit = true; }},
    {Condition::kCatalogOff,
     [](DomainFigures* f) { f->lower_tiers[0].stats.catalog_trouble = "it is damaged"; }},
    {Condition::kGroupsNotKept, [](DomainFigures* f) { f->group_files.groups_not_kept = 1; }},
    {Condition::kKeysNotErased, [](DomainFigures* f) { f->group_files.keys_not_erased = 1; }},
    {Condition::kRedisAway, [](DomainFigures* f) { f->shared->tier.is_ready = false; }},
    {Condition::kRedisNoWrites,
     [](DomainFigures* f) {
       f->shared->tier.write_trouble = "the Redis server is full";
       f->shared->tier.is_full = true;
     }},
    {Condition::kFencedMemory, [](DomainFigures* f) { f->fenced_bytes = 8 * kMiB; }},
    {Condition::kWrongChecksums, [](DomainFigures* f) { f->refuted_ago_us = kUsPerSecond; }},
};

TEST(Conditions, AWellDomainHasNone) { EXPECT_THAT(TroublesOf(Well(), kTold), IsEmpty()); }

// PROMISE: T27 conditions
TEST(Conditions, EachHoldsForItsCauseAloneAndHeals) {
  for (const auto& [condition, cause] : kCauses) {
    DomainFigures figures = Well();
    cause(&figures);
    EXPECT_THAT(ConditionsOf(figures), ElementsAre(condition)) << NameOf(condition);
    EXPECT_THAT(ConditionsOf(Well()), IsEmpty());
  }
  EXPECT_EQ(kCauses.size() + 1, kConditionCount) << "and kv_events_off";
  const auto ended = TroublesOf(Well(), KvEventCounters{.is_on = false, .has_ended = true});
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].condition, Condition::kKvEventsOff);
  EXPECT_NE(ended[0].sentence.find("a restart begins them again"), std::string::npos);
  const auto unbound = TroublesOf(Well(), KvEventCounters{.is_on = false});
  ASSERT_EQ(unbound.size(), 1u);
  EXPECT_EQ(unbound[0].condition, Condition::kKvEventsOff);
  EXPECT_NE(unbound[0].sentence.find("tried again each 10 s"), std::string::npos);
  const auto untold = TroublesOf(Well(), KvEventCounters{.untold_groups = 3});
  ASSERT_EQ(untold.size(), 1u);
  EXPECT_EQ(untold[0].condition, Condition::kKvEventsOff);
  EXPECT_NE(untold[0].sentence.find("3 SpaceGroups"), std::string::npos);
  EXPECT_THAT(TroublesOf(Well(), std::nullopt), IsEmpty()) << "nobody is to be told";
}

TEST(Conditions, TheDocumentAndTheMetricsAgree) {
  for (const auto& [condition, cause] : kCauses) {
    PageSnapshot page;
    static_cast<DomainFigures&>(page.domain) = Well();
    cause(&page.domain);
    const auto document = nlohmann::json::parse(BriefStatsDocument(
        {.process = page.process, .domain = page.domain, .kv_events = page.kv_events}));
    EXPECT_EQ(document.at("health"), "degraded");
    EXPECT_EQ(document.at("troubles").size(), 1u);
    EXPECT_EQ(document.at("conditions"), nlohmann::json::array({NameOf(condition)}));
  }
}

TEST(Conditions, ADriveThatIsOffSaysWhatFailedAndWhatComesNext) {
  DomainFigures figures = Well();
  DriveTrouble drive = OffDrive();
  drive.probe_error = EROFS;
  figures.lower_tiers[0].troubles.push_back(drive);
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("/mnt/a/chat is off"), HasSubstr("8 requests in a row failed"),
                    HasSubstr("a write, with Input/output error (errno 5)"),
                    HasSubstr("a probe takes it back"), HasSubstr("Read-only file system")));
  figures.lower_tiers[0].stats.is_healthy = false;
  EXPECT_EQ(ConditionsOf(figures).size(), 1u) << "the tier is off because its drive is";
  figures.lower_tiers[0].troubles.clear();
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kDriveOff));
}

TEST(Conditions, ACatalogIsOffByItselfOnlyWhereItsDriveIsWell) {
  DomainFigures figures = Well();
  figures.lower_tiers[0].stats.catalog_trouble = "it is damaged";
  EXPECT_THAT(OnlySentence(figures), AllOf(HasSubstr("it is damaged"), HasSubstr("the audit"),
                                           HasSubstr("within a minute")));
  figures.lower_tiers[0].troubles.push_back(OffDrive());
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kDriveOff));
  figures.lower_tiers[0].troubles[0].drive = 1;
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kDriveOff, Condition::kCatalogOff))
      << "it lies on the first";
}

TEST(Conditions, ARequestThatIsNotAnsweredHasNoErrno) {
  DomainFigures figures = Well();
  DriveTrouble drive = OffDrive();
  drive.error = 0;
  figures.lower_tiers[0].troubles.push_back(drive);
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("a write was not answered"), testing::Not(HasSubstr("errno"))));
}

TEST(Conditions, RedisThatRefusesTheLoginSaysWhereThatIs) {
  DomainFigures figures = Well();
  figures.shared->tier.is_ready = false;
  figures.shared->tier.is_refused = true;
  figures.shared->tier.trouble = "the Redis server refuses this user";
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("refuses this user"), HasSubstr("redis.credentials_file")));
  figures.shared->tier.write_trouble = "of before";
  EXPECT_EQ(ConditionsOf(figures).size(), 1u) << "who is away takes no writes";
}

// A node of a Cluster that refuses the login, or an ACL that forbids what reads.
TEST(Conditions, RedisThatIsAwayInPartIsTold) {
  DomainFigures figures = Well();
  SharedTierStats& tier = figures.shared->tier;
  tier.is_ready = tier.is_refused = true;
  tier.part_trouble = "10.0.0.7:6379: the Redis server refuses this user";
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("redis is away in part: 10.0.0.7:6379: the Redis server refuses"),
                    HasSubstr("all else is served"), HasSubstr("redis.credentials_file")));
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kRedisAway));
  tier.write_trouble = "of others";
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kRedisAway, Condition::kRedisNoWrites));
}

TEST(Conditions, RedisBehindWrongCertificatesNamesTheFiles) {
  DomainFigures figures = Well();
  SharedTierStats& tier = figures.shared->tier;
  tier.is_ready = false;
  tier.is_refused = tier.is_tls_refused = true;
  tier.trouble = "a Redis server's certificate does not verify";
  EXPECT_THAT(
      OnlySentence(figures),
      AllOf(HasSubstr("does not verify"), HasSubstr("redis.tls_ca_file"),
            HasSubstr("redis.tls_certificate_file"), testing::Not(HasSubstr("credentials_file"))));
  tier.tls_trouble = "tls_key_file /k.pem: no private key in PEM";
  EXPECT_THAT(OnlySentence(figures), HasSubstr("redis.tls_key_file /k.pem: no private key"));
}

TEST(Conditions, RedisOfAnotherKindNamesTheKeys) {
  DomainFigures figures = Well();
  SharedTierStats& tier = figures.shared->tier;
  tier.is_ready = false;
  tier.is_of_another_kind = true;
  tier.trouble = "the Redis server is a node of a Redis Cluster";
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("a node of a Redis Cluster"), HasSubstr("redis.mode"),
                    HasSubstr("redis.master_name"), testing::Not(HasSubstr("IPAddressAllow"))));
}

TEST(Conditions, MemoryOfAPredecessorsClientsCountsAsFenced) {
  DomainFigures figures = Well();
  figures.fenced_bytes = figures.inherited_bytes = 4 * kMiB;
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kFencedMemory));
  figures.inherited_bytes -= 1;
  EXPECT_THAT(ConditionsOf(figures), IsEmpty());
}

TEST(Conditions, WrongChecksumsNameTheProgramAndAreTold15Minutes) {
  DomainFigures figures = Well();
  figures.refuted_ago_us = kRefutedRecentUs;
  figures.refuted_writer = RefutedWriter{.session = 0x621aa671f69a7f87,
                                         .uid = 7,
                                         .pid = 4711,
                                         .client_name = "engine-1",
                                         .comm = "python3"};
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("session 621aa671f69a7f87 of uid 7"), HasSubstr("pid 4711 (python3)"),
                    HasSubstr("client engine-1")));
  ++figures.refuted_ago_us;
  EXPECT_THAT(ConditionsOf(figures), IsEmpty());
}

TEST(Conditions, AShrinkSaysHowFarItIs) {
  DomainFigures figures = Well();
  figures.lower_tiers[0].stats.share = {
      .held_bytes = 12 * kMiB, .leaving_bytes = 4 * kMiB, .above_bytes = 8 * kMiB};
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("files take 12582912 bytes, 8388608 more than it may"),
                    HasSubstr("nvme.capacity_bytes or nvme_max_bytes was lowered"),
                    HasSubstr("4194304 bytes of them now")));
}

TEST(Conditions, ATierWithoutMoreFilesSaysWhichLimitAndWhatItWants) {
  DomainFigures figures = Well();
  figures.lower_tiers[0].stats.is_at_files_limit = true;
  figures.lower_tiers[0].stats.files_open = 8192;
  EXPECT_THAT(OnlySentence(figures), AllOf(HasSubstr("each path of nvme.paths has 8192"),
                                           HasSubstr("another size than nvme.slab_bytes")));
  figures.lower_tiers[0].stats.files_open = 500;
  figures.lower_tiers[0].stats.fds_max = 4096;
  figures.lower_tiers[0].stats.fds_wanted = 70000;
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("has 500 open"), HasSubstr("may open 4096 files"),
                    HasSubstr("wants 70000"), HasSubstr("LimitNOFILE=")));
}

// The drive is whole: nothing tells to repair or to replace it.
TEST(Conditions, BlocksOfGroupsWithoutAFileAreLeftAloneAndTheDirectoryIsNamed) {
  DomainFigures figures = Well();
  figures.group_files.directory = "/mnt/a/chat/groups";
  figures.lower_tiers[0].stats.left_alone_bytes = kGiB / 2;
  figures.lower_tiers[0].stats.ungrouped_bytes = kGiB / 2;
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kSlabsLeftAlone));
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("536870912 bytes"), HasSubstr("no file in /mnt/a/chat/groups"),
                    HasSubstr("Bring back the path of nvme.paths"),
                    testing::Not(HasSubstr("secret_file"))));
  figures.lower_tiers[0].stats.left_alone_bytes += 1;
  EXPECT_THAT(ConditionsOf(figures),
              ElementsAre(Condition::kSlabsLeftAlone, Condition::kSlabsLeftAlone));
}

TEST(Conditions, WhatCannotBeWrittenOrErasedOfGroupsSaysWhereAndWhy) {
  DomainFigures figures = Well();
  figures.group_files = {.directory = "/mnt/a/chat/groups",
                         .groups_not_kept = 2,
                         .why_not_kept = "cannot create it (No space left on device)"};
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("files of 2 groups"), HasSubstr("to /mnt/a/chat/groups"),
                    HasSubstr("No space left on device")));
  figures.group_files = {.directory = "/mnt/a/chat/groups",
                         .keys_not_erased = 1,
                         .why_not_erased = "cannot open it (Read-only file system)"};
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("keys of 1 groups"), HasSubstr("keys/ beside /mnt/a/chat/groups"),
                    HasSubstr("Read-only file system")));
  figures.group_files = {.directory = "/mnt/a/chat/groups",
                         .key_files_not_wrapped = 3,
                         .why_not_wrapped = "cannot open it (Read-only file system)",
                         .keys_needed = "0123456789abcdef"};
  EXPECT_THAT(ConditionsOf(figures), ElementsAre(Condition::kGroupsNotKept));
  EXPECT_THAT(OnlySentence(figures),
              AllOf(HasSubstr("3 files of groups' keys"), HasSubstr("Read-only file system"),
                    HasSubstr("wrapped by key 0123456789abcdef, not by the first"),
                    HasSubstr("Leave that key in the file")));
}

TEST(Conditions, TheManualNamesEach) {
  const std::string page = SourceFile("docs/OPERATIONS.md");
  for (const std::string_view name : kConditionNames) {
    EXPECT_NE(page.find("| `" + std::string(name) + "` |"), page.npos)
        << name << " has no row in docs/OPERATIONS.md";
  }
}

}  // namespace
}  // namespace terrace
