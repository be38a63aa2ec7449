// The drives of all domains at the start: those that serve are opened, those that missed an erasure
// begin empty, and who is absent is told; and the files that say what blocks mean, on all of them.
//
// THREADING: at the start; blocks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/domain/domain_nvme.h"
#include "daemon/domain/known_drives.h"
#include "daemon/persist/group_files_on_paths.h"
#include "daemon/persist/missed_erasures.h"
#include "daemon/process/state_dir_lock.h"

namespace terrace {

// What all domains have in common.
struct DrivesOptions {
  std::span<const DomainSecret> secrets;                  // by domain index
  std::span<const std::shared_ptr<const KeyRing>> rings;  // the same
  TierShares* shares = nullptr;                           // null: there is no [nvme]
  std::shared_ptr<FileBudget> files;
  std::function<void(std::function<void()>)> post;
  std::function<uint64_t()> now_us;
  std::function<uint64_t()> random;
};

// What the predecessors wrote down; `noted` is MissedErasures'.
std::unique_ptr<MissedErasures> OpenMissedErasures(const DaemonConfig& config,
                                                   const StateDirLock& lock,
                                                   std::function<void(uint32_t)> noted);
// One DomainNvme a domain, or none where the configuration has no drives. Not kOk: `*why` names
// path, cause and remedy.
Status OpenDrives(const DaemonConfig& config, const DrivesOptions& options,
                  const KnownDrives& drives, MissedErasures* missed,
                  std::vector<std::unique_ptr<DomainNvme>>* domains, std::string* why);

// Without drives: of what is kept in DRAM.
std::string KeptGroupsDirectory(const DaemonConfig& config, size_t domain_index);
// Where blocks may outlive the daemon, what they mean has to. `changed` is DiskGroupFiles'.
std::unique_ptr<GroupFilesOnPaths> OpenGroupFiles(const DaemonConfig& config,
                                                  std::span<const DomainSecret> secrets,
                                                  std::span<const std::unique_ptr<DomainNvme>> nvme,
                                                  std::function<void(uint32_t)> changed);

}  // namespace terrace
