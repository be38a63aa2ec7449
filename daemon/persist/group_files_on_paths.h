// GroupFilesOnPaths: the files of groups on all paths of a domain's drives. A block that lies on
// one drive is found again whichever others are lost, and a group is kept as soon as one drive has
// its file, with its key where the domain encrypts.
//
// Each path has a thread of its own: a drive that hangs holds up its own files. Keys are the first
// path's (GroupKeyFiles says where they lie).
//
// THREADING, LIMITS: as DiskGroupFiles, of each path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/persist/group_files.h"

namespace terrace {

class GroupFilesOnPaths final : public KeyedGroupFiles {
 public:
  // One a path, of the same domains. Of those behind the first no domain has keys.
  explicit GroupFilesOnPaths(std::vector<DiskGroupFiles::Options> paths);

  void Keep(uint32_t domain_index, const SpaceGroupSpec& spec) override;
  void Inherit(uint32_t domain_index, const SpaceGroupSpec& spec) override;
  void Drop(uint32_t domain_index, const GroupId& id) override;
  State StateOf(uint32_t domain_index, const GroupId& id) const override;
  bool IsLost(uint32_t domain_index, const GroupId& id) const override;
  // The first path's, of groups that no other one keeps.
  GroupFilesTrouble TroubleOf(uint32_t domain_index) const override;
  bool IsWhole(uint32_t domain_index, const GroupId& id) const override;
  void DestroyKey(uint32_t domain_index, const GroupId& id) override;
  bool AreKeysDestroyed(uint32_t domain_index) const override;
  // As DiskGroupFiles'.
  void SetRing(uint32_t domain_index, std::shared_ptr<const KeyRing> ring,
               std::function<void(const std::vector<std::string>& notes)> done);
  bool Drain(uint64_t timeout_us);

 private:
  DiskGroupFiles& first() const { return *paths_.front(); }
  // What the paths behind the first say, the best of it.
  State StateElsewhere(uint32_t domain_index, const GroupId& id) const;

  std::vector<std::unique_ptr<DiskGroupFiles>> paths_;
};

}  // namespace terrace
