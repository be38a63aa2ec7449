// `terrace fsck`: holds what a daemon keeps on its drives against itself: what a stopped one left,
// read here, or with --online what a running one has, which it checks itself.
#include "daemon/persist/fsck.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"
#include "daemon/config/installed_unit.h"
#include "terrace/domain_secret.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/content/confirm.h"
#include "tools/terrace/verbs/fsck_online.h"

namespace terrace::tools {
namespace {

constexpr char kConfigPath[] = "/etc/terrace/terraced.toml";
constexpr char kFsckDescription[] =
    "Check what lies on a daemon's NVMe paths\n\n"
    "Compares header tables, groups and catalog; --verify also reads every block and checks it\n"
    "against its checksums. Without --repair nothing is changed. Run it with the daemon stopped, "
    "as\n"
    "its user, or as root, who goes on as whoever the files belong to; or with --online beside a\n"
    "running daemon, which then compares what it has in memory, too, while it serves. There,\n"
    "Ctrl-C ends it.\n"
    "Exit status: 0 clean, 1 problems were found (repaired or not), 2 could not look.";

std::string CatalogSentence(const FsckReport& report) {
  switch (report.catalog) {
    case FsckCatalog::kNone:
      return "none: the next start reads the tables, and writes one";
    case FsckCatalog::kOpen:
      return "not closed by a clean stop: the next start reads the tables";
    case FsckCatalog::kClosed:
      return FormatCount(report.catalog_records) + " records: the next start reads it";
    case FsckCatalog::kDamaged:
      return "damaged: the next start reads the tables";
    case FsckCatalog::kInUse:
      return FormatCount(report.catalog_records) + " records, in use";
    case FsckCatalog::kRewritten:
      return "written anew: the next start reads it";
  }
  return "";
}

std::string RenderReport(const std::string& domain, const FsckReport& report) {
  uint64_t slots = 0, quarantined = 0;
  for (const FsckSlab& slab : report.slabs) {
    slots += slab.slots;
    quarantined += slab.quarantined;
  }
  std::string text = fmt::format("domain    {}\n", domain);
  text += fmt::format("slabs     {} with {} slots, {} in use, {} quarantined\n",
                      FormatCount(report.slabs.size()), FormatCount(slots),
                      FormatCount(report.entries_used), FormatCount(quarantined));
  if (report.entries_outdated > 0) {
    text += fmt::format("          {} in use hold an older copy: a repair or a start frees them\n",
                        FormatCount(report.entries_outdated));
  }
  text += fmt::format("groups    {}\n", FormatCount(report.groups));
  text += fmt::format("catalog   {}\n", CatalogSentence(report));
  if (report.payload_bytes_verified > 0) {
    text += fmt::format("verified  {} copies, {} read\n", FormatCount(report.payloads_verified),
                        FormatBytes(report.payload_bytes_verified));
  }
  for (const std::string& note : report.notes) text += fmt::format("note      {}\n", note);
  for (const FsckProblem& problem : report.problems) {
    text += fmt::format("problem   {}{}\n", problem.what, problem.is_repaired ? " (repaired)" : "");
  }
  const uint64_t problems = report.problem_count();
  uint64_t told = 0;
  for (const FsckProblem& problem : report.problems) told += problem.count;
  if (problems > told) text += fmt::format("          and {} more\n", FormatCount(problems - told));
  text += problems == 0 ? "clean\n"
                        : fmt::format("{} problems, {} repaired\n", FormatCount(problems),
                                      FormatCount(report.repaired));
  return text;
}

nlohmann::json DocumentOf(const std::string& domain, const FsckReport& report) {
  nlohmann::json slabs = nlohmann::json::array(), problems = nlohmann::json::array();
  for (const FsckSlab& slab : report.slabs) {
    slabs.push_back({{"path", slab.path},
                     {"slot_bytes", slab.slot_bytes},
                     {"part_count", slab.part_count},
                     {"slot_count", slab.slots},
                     {"used_count", slab.used},
                     {"quarantined_count", slab.quarantined},
                     {"corrupt_count", slab.corrupt}});
  }
  for (const FsckProblem& problem : report.problems) {
    problems.push_back({{"kind", FsckProblemName(problem.kind)},
                        {"what", problem.what},
                        {"count", problem.count},
                        {"is_repaired", problem.is_repaired}});
  }
  nlohmann::json counts = nlohmann::json::object();
  for (size_t kind = 0; kind < kFsckProblemKinds; ++kind) {
    counts[FsckProblemName(static_cast<FsckProblemKind>(kind))] = report.counts[kind];
  }
  return {{"domain", domain},
          {"slabs", std::move(slabs)},
          {"catalog", FsckCatalogName(report.catalog)},
          {"catalog_record_count", report.catalog_records},
          {"group_count", report.groups},
          {"entry_count", report.entries_used},
          {"outdated_entry_count", report.entries_outdated},
          {"verified_count", report.payloads_verified},
          {"verified_bytes", report.payload_bytes_verified},
          {"problem_count", report.problem_count()},
          {"repaired_count", report.repaired},
          {"problem_counts", std::move(counts)},
          {"problems", std::move(problems)},
          {"notes", report.notes}};
}

class FsckVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("fsck", kFsckDescription);
    const Argument config =
        verb.AddOption("--config", config_path_,
                       fmt::format("The daemon's configuration (default {})", kConfigPath))
            .Type("FILE");
    verb.AddOption("--domain", domain_,
                   "Only this domain (default: all, one after the other; --online: the socket's)")
        .Type("NAME");
    const Argument secret =
        verb.AddOption("--secret", secret_path_,
                       "The domain's secret, where the configuration finds another one")
            .Type("FILE");
    verb.AddFlag("--verify", is_verifying_, "Read every block and check its bytes");
    verb.AddFlag("--repair", is_repairing_,
                 "Give back slots that are of no use and write a wrong catalog anew; asks");
    verb.AddFlag("--free-unknown-groups", is_freeing_unknown_,
                 "With --repair: also give up blocks of groups whose files are missing, for good");
    verb.AddFlag("--yes", is_confirmed_, "With --repair: do not ask");
    const Argument online =
        verb.AddFlag("--online", is_online_, "Ask the running daemon at --socket instead")
            .Excludes(config)
            .Excludes(secret);
    verb.AddOption("--verify-rate", verify_rate_text_,
                   "With --online --verify: how much is read a second, such as 256MiB")
        .Type("BYTES")
        .ShowDefault()
        .Needs(online);
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (is_freeing_unknown_ && (is_online_ || !is_repairing_)) {
      Fail("fsck: --free-unknown-groups is for --repair with the daemon stopped, not for --online");
      return kExitUsage;
    }
    if (is_repairing_ && !is_confirmed_) {
      const ExitCode answer =
          Confirm({.verb = "fsck",
                   .what = is_freeing_unknown_ ? "what differs, and blocks of unknown groups"
                                               : "copies and records that differ",
                   .where = is_online_ ? address_.path() : "the drives",
                   .remedy = "leave out --repair to see what differs"});
      if (answer != kExitOk) return kExitUsage;
    }
    if (is_online_) return RunOnline();
    DaemonConfig config;
    if (!ReadConfig(&config)) return kExitUsage;
    nlohmann::json documents = nlohmann::json::array();
    uint64_t looked_at = 0, problems = 0;
    for (const DomainConfig& domain : config.domains) {
      if (!domain_.empty() && domain.name != domain_) continue;
      FsckReport report;
      if (!Check(config, domain, &report)) return kExitUsage;
      ++looked_at;
      problems += report.problem_count();
      if (is_json_) {
        documents.push_back(DocumentOf(domain.name, report));
      } else {
        PrintText(RenderReport(domain.name, report));
      }
    }
    if (looked_at == 0) {
      Fail(fmt::format("fsck: there is no domain '{}' in {}", domain_, config_path_));
      return kExitUsage;
    }
    if (is_json_) PrintJson({{"domains", std::move(documents)}});
    return problems == 0 ? kExitOk : kExitFailed;
  }

 private:
  // One domain: that of the socket.
  ExitCode RunOnline() {
    uint64_t verify_bytes_per_second = 0;
    if (!ParseBytes(verify_rate_text_, &verify_bytes_per_second) || verify_bytes_per_second == 0) {
      Fail(fmt::format("fsck: --verify-rate is '{}' a second; {}", verify_rate_text_,
                       WantedBytes("64MiB")));
      return kExitUsage;
    }
    FsckOnlineOptions options{
        .address = address_,
        .domain = domain_,
        .payloads = is_verifying_ ? FsckPayloads::kVerify : FsckPayloads::kLeave,
        .mode = is_repairing_ ? FsckMode::kRepair : FsckMode::kLook,
        .verify_bytes_per_second = verify_bytes_per_second};
    const bool is_told = isatty(STDERR_FILENO) != 0;
    if (is_told) {
      options.progress = [](uint64_t bytes_done) {
        std::fprintf(stderr, "\rterrace: %s verified", FormatBytes(bytes_done).c_str());
      };
    }
    std::string domain;
    FsckReport report;
    const bool has_looked = FsckOnline(options, &domain, &report);
    if (report.payload_bytes_verified > 0 && is_told) std::fputc('\n', stderr);
    if (!has_looked) return kExitUsage;
    if (is_json_) {
      PrintJson({{"domains", nlohmann::json::array({DocumentOf(domain, report)})}});
    } else {
      PrintText(RenderReport(domain, report));
    }
    return report.problem_count() == 0 ? kExitOk : kExitFailed;
  }

  bool ReadConfig(DaemonConfig* config) {
    const auto unit = FindInstalledUnit();
    if (config_path_.empty() && unit) config_path_ = unit->config_path;
    if (config_path_.empty()) config_path_ = kConfigPath;
    const ConfigEnvironment environment = unit && unit->Reads(config_path_)
                                              ? unit->Surroundings(geteuid())
                                              : ConfigEnvironment::OfProcess();
    std::string why;
    if (!ReadConfigFile(config_path_, config, &why).ok() ||
        !ResolveConfig({}, environment, config, &why).ok()) {
      Fail("fsck: " + why);
      return false;
    }
    if (!config->nvme.is_on()) {
      Fail(fmt::format("fsck: {} names no nvme.paths, so nothing is kept on drives", config_path_));
      return false;
    }
    return true;
  }

  // Root goes on as the daemon's user: what it writes there the daemon has to open, and a secret is
  // believed of root and of who reads it.
  static bool BecomeOwner(const std::string& directory) {
    struct stat about {};
    if (geteuid() != 0 || stat(directory.c_str(), &about) != 0 || about.st_uid == 0) return true;
    const Account owner = OwnerAccount(about.st_uid, about.st_gid);
    std::string why;
    if (BecomeAccount(owner, &why).ok()) return true;
    Fail(
        fmt::format("fsck: {} belongs to {}, and {}. Run it as that user: sudo -u '#{}' terrace "
                    "fsck",
                    directory, owner.name, why, owner.uid));
    return false;
  }

  bool Check(const DaemonConfig& config, const DomainConfig& domain, FsckReport* report) const {
    FsckOptions options{.payloads = is_verifying_ ? FsckPayloads::kVerify : FsckPayloads::kLeave,
                        .mode = is_repairing_ ? FsckMode::kRepair : FsckMode::kLook,
                        .unknown_groups = is_freeing_unknown_ ? FsckUnknownGroups::kFree
                                                              : FsckUnknownGroups::kLeave};
    for (const std::string& path : config.nvme.paths) {
      options.directories.push_back(path + "/" + domain.name);
    }
    if (!BecomeOwner(options.directories.front())) return false;
    if (isatty(STDERR_FILENO)) {
      options.progress = [](uint64_t bytes_done, uint64_t bytes_total) {
        std::fprintf(stderr, "\rterrace: %s of %s verified", FormatBytes(bytes_done).c_str(),
                     FormatBytes(bytes_total).c_str());
      };
    }
    std::string why;
    const std::string& secret = secret_path_.empty() ? domain.secret_file : secret_path_;
    if (!ReadDomainSecretFile(secret, &options.secret, &why).ok()) {
      Fail("fsck: " + why + ". --secret names another file");
      return false;
    }
    const Status status = RunFsck(options, report, &why);
    if (report->payload_bytes_verified > 0 && options.progress) std::fputc('\n', stderr);
    if (!status.ok()) Fail("fsck: " + why);
    return status.ok();
  }

  std::string config_path_;
  std::string domain_;
  std::string secret_path_;
  bool is_verifying_ = false;
  bool is_repairing_ = false;
  bool is_freeing_unknown_ = false;
  bool is_json_ = false;
  bool is_online_ = false;
  bool is_confirmed_ = false;
  std::string verify_rate_text_ = "64MiB";
  DaemonAddress address_;
};

}  // namespace

std::unique_ptr<Verb> MakeFsckVerb() { return std::make_unique<FsckVerb>(); }

}  // namespace terrace::tools
