#include "daemon/domain/domain_drives.h"

#include <utility>

#include "daemon/domain/domain_redis.h"
#include "daemon/log/log.h"

namespace terrace {
namespace {

DomainNvme::Options OptionsOf(const DaemonConfig& config, const DrivesOptions& options,
                              const KnownDrives& drives, uint32_t domain_index) {
  const DomainConfig& domain = config.domains[domain_index];
  return {.domain_index = domain_index,
          .domain_name = domain.name,
          .secret = options.secrets[domain_index],
          .nvme = drives.nvme,
          .lost_mounts = drives.lost_mounts,
          .not_opened = drives.not_opened,
          .shares = options.shares,
          .files = options.files,
          .state_dir = config.state_dir,
          .ring = options.rings[domain_index],
          .is_plain_served = domain.encryption_plain_blocks == PlainBlocks::kServe,
          .post = options.post,
          .now_us = options.now_us,
          .random = options.random};
}

void WarnOfGroupFiles(const std::string& why) {
  Log(LogLevel::kWarn, "group files", {{"why", why}});
}

}  // namespace

std::unique_ptr<MissedErasures> OpenMissedErasures(const DaemonConfig& config,
                                                   const StateDirLock& lock,
                                                   std::function<void(uint32_t)> noted) {
  MissedErasures::Options options;
  options.is_anything_kept = lock.blocks() != StateDirLock::Blocks::kNowhere;
  options.is_certain = lock.blocks() == StateDirLock::Blocks::kSomewhere;
  for (size_t i = 0; i < config.domains.size(); ++i) {
    options.paths.push_back(config.state_dir + "/" + config.domains[i].name +
                            std::string(kMissedErasuresSuffix));
    options.key_directories.push_back(KeptKeysDirectory(config.state_dir, config.domains[i].name));
    options.all_redis.push_back(RedisSecretNamesOf(config, i));
  }
  options.noted = std::move(noted);
  options.trouble = [](const std::string& why) {
    Log(LogLevel::kWarn, "missed erasures", {{"why", why}});
  };
  return std::make_unique<MissedErasures>(std::move(options));
}

Status OpenDrives(const DaemonConfig& config, const DrivesOptions& options,
                  const KnownDrives& drives, MissedErasures* missed,
                  std::vector<std::unique_ptr<DomainNvme>>* domains, std::string* why) {
  if (!drives.nvme.is_on()) return Status::Ok();
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    domains->push_back(std::make_unique<DomainNvme>(OptionsOf(config, options, drives, i)));
    TERRACE_RETURN_IF_ERROR(domains->back()->Open(*missed, why));
  }
  return Status::Ok();
}

std::string KeptGroupsDirectory(const DaemonConfig& config, size_t domain_index) {
  return config.state_dir + "/" + config.domains[domain_index].name + ".groups";
}

std::unique_ptr<GroupFilesOnPaths> OpenGroupFiles(const DaemonConfig& config,
                                                  std::span<const DomainSecret> secrets,
                                                  std::span<const std::unique_ptr<DomainNvme>> nvme,
                                                  std::function<void(uint32_t)> changed) {
  std::vector<DiskGroupFiles::Options> paths(nvme.empty() ? 1 : nvme[0]->path_count());
  for (size_t path = 0; path < paths.size(); ++path) {
    paths[path].groups_max = config.groups_max;
    paths[path].trouble = WarnOfGroupFiles;
    paths[path].changed = changed;
    for (uint32_t i = 0; i < config.domains.size(); ++i) {
      paths[path].domains.push_back(
          nvme.empty() ? DiskGroupFiles::Domain{.directory = KeptGroupsDirectory(config, i),
                                                .secret = secrets[i]}
                       : nvme[i]->group_files(path));
    }
  }
  return std::make_unique<GroupFilesOnPaths>(std::move(paths));
}

}  // namespace terrace
