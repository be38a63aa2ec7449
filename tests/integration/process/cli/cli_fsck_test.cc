// `terrace fsck` on what a domain left, and beside somebody who uses it.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "daemon/persist/slab_files.h"
#include "integration/process/cli/cli_fixture.h"
#include "sim/disk_domain.h"
#include "terrace/domain_secret.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CliFsckTest : public CliTest {
 protected:
  // A domain over two paths that was stopped in order, its secret and its configuration.
  void SetUp() override {
    std::filesystem::create_directory(Path("drives"));
    domain_ = std::make_unique<sim::DiskDomain>(
        sim::DiskDomain::Options{.root = Path("drives"), .path_count = 2});
    secret_ = domain_->secret();
    slab_directory_ = domain_->directories()[0];
    Write("domain.secret", FormatDomainSecret(secret_));
    Write("terraced.toml",
          "[nvme]\npaths = [\"" + Path("drives/path0") + "\", \"" + Path("drives/path1") +
              "\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"4MiB\"\n"
              "[[domain]]\nname = \"domain\"\nsocket = \"" +
              Path("t.sock") + "\"\nsecret_file = \"" + Path("domain.secret") + "\"\n");
    domain_->RestoreFromTables();
    ASSERT_TRUE(WriteGroupFile(domain_->groups_directory(), sim::DiskGroup(), secret_).ok());
    for (uint32_t owner = 0; owner < 20; ++owner) {
      ASSERT_TRUE(domain_->RunUntil([&] { return domain_->Store(owner); }));
    }
    domain_->StopClean();
  }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name)) << content;
    std::filesystem::permissions(Path(name), std::filesystem::perms{0600});
  }
  Outcome Fsck(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"fsck", "--config", Path("terraced.toml")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Terrace(arguments);
  }
  void DamageFirstEntry() const {
    const SlabFile slab = ListSlabFiles(slab_directory_, secret_).at(0);
    std::fstream file(slab.path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(slab.geometry.EntryOffsetBytes(0) + 60));
    file.write("damaged", 7);
  }

  std::unique_ptr<sim::DiskDomain> domain_;
  DomainSecret secret_{};
  std::string slab_directory_;
};

TEST_F(CliFsckTest, UsedDomainIsRefusedAndItsProcessNamed) {
  const Outcome outcome = Fsck();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("in use by process " + std::to_string(getpid())));
}

TEST_F(CliFsckTest, CleanDomainIsCalledClean) {
  domain_.reset();
  const Outcome outcome = Fsck({"--verify"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("20 in use"), HasSubstr("verified  20 copies"),
                                 HasSubstr("catalog   20 records"), HasSubstr("\nclean\n")));
  const nlohmann::json document = nlohmann::json::parse(Fsck({"--verify", "--json"}).out);
  const nlohmann::json& domain = document.at("domains").at(0);
  EXPECT_EQ(domain.at("entry_count"), 20);
  EXPECT_EQ(domain.at("verified_count"), 20);
  EXPECT_EQ(domain.at("problem_count"), 0);
  EXPECT_EQ(domain.at("catalog"), "closed");
}

TEST_F(CliFsckTest, ProblemsAreToldAndRepaired) {
  domain_.reset();
  DamageFirstEntry();
  Outcome outcome = Fsck();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("problem   the entry of slot 0 of " + slab_directory_),
                                 HasSubstr("2 problems, 0 repaired")));
  const nlohmann::json document = nlohmann::json::parse(Fsck({"--repair", "--yes", "--json"}).out);
  const nlohmann::json& domain = document.at("domains").at(0);
  EXPECT_EQ(domain.at("problem_counts").at("entry_corrupt"), 1);
  EXPECT_EQ(domain.at("problem_counts").at("catalog_differs"), 1);
  EXPECT_EQ(domain.at("repaired_count"), 2);
  EXPECT_EQ(domain.at("problems").at(0).at("is_repaired"), true);
  outcome = Fsck({"--verify"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("19 in use"));
}

// The file of their group may come back.
TEST_F(CliFsckTest, BlocksOfUnknownGroupsAreGivenUpOnlyInSoManyWords) {
  domain_.reset();
  std::filesystem::remove_all(slab_directory_ + "/groups");
  std::filesystem::remove_all(slab_directory_ + "/catalog");
  Outcome outcome = Fsck({"--repair", "--yes"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("note      20 entries are left as they are"),
                    HasSubstr("--free-unknown-groups"), HasSubstr("20 problems, 0 repaired")));
  EXPECT_EQ(Fsck({"--free-unknown-groups", "--online"}).exit_code, 2);
  outcome = Fsck({"--free-unknown-groups", "--verify"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--repair with the daemon stopped"));
  outcome = Fsck({"--repair", "--free-unknown-groups", "--yes"});
  EXPECT_THAT(outcome.out, HasSubstr("20 problems, 20 repaired"));
  EXPECT_THAT(Fsck().out, HasSubstr("0 in use"));
}

TEST_F(CliFsckTest, WhatCannotBeLookedAtIsNoCleanDomain) {
  domain_.reset();
  Outcome outcome = Fsck({"--domain", "other"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'other'"));
  std::filesystem::remove_all(Path("drives/path1"));
  outcome = Fsck();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("drives/path1/domain"));
  outcome = Fsck({"--secret", Path("none")});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr(Path("none")));
}

}  // namespace
}  // namespace terrace
