// The files that name a domain's groups: one a SpaceGroup, with the canonical texts of its members.
// Blocks that outlive the daemon say only a group's digest; without its file nobody knows what
// their bytes mean, and they are freed.
//
// THREADING: DiskGroupFiles has one thread that writes; Keep never blocks. The functions block.
// LIMITS: groups_max files a directory, besides those of other secrets. Beyond, the file that was
// opened longest ago goes, but none of those kept in this run and not dropped since.
// kDropsQueuedMax. Files that somebody removes are noticed within a look_interval, and what could
// not be written, or of keys not be erased or wrapped anew, is tried again in each.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/block/keyed_group_files.h"
#include "daemon/block/seams.h"
#include "daemon/persist/group_file_text.h"
#include "daemon/persist/group_key_files.h"
#include "terrace/checksum.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr std::string_view kGroupFileSuffix = ".group";
inline constexpr size_t kGroupFileBytesMax = kGroupMembersMax * (kSpaceTextBytesMax + 64) + 1024;

struct FoundGroup {
  SpaceGroupSpec spec;
  std::string directory;
};
// The specs of all whole group files, the one opened last first: of two with one name it is the one
// in use, and of one group in several directories the first one's file comes first where they are
// of one time. Others are noted in a sentence each, and stay. A directory that is not there holds
// none.
std::vector<FoundGroup> FindGroupFiles(const std::vector<std::string>& directories,
                                       const DomainSecret& secret, std::vector<std::string>* notes);
// Of one directory.
std::vector<SpaceGroupSpec> LoadGroupFiles(const std::string& directory, const DomainSecret& secret,
                                           std::vector<std::string>* notes);
// Written beside its place, synced, renamed into it; a file that another secret sealed keeps its
// place, and this one gets another. kIo.
Status WriteGroupFile(const std::string& directory, const SpaceGroupSpec& spec,
                      const DomainSecret& secret);

class DiskGroupFiles final : public KeyedGroupFiles {
 public:
  static constexpr size_t kDropsQueuedMax = 1024;  // files of more stay until room is needed

  struct Domain {
    std::string directory;  // made when the first group is kept
    DomainSecret secret{};
    // Also told, on the writing thread, what a file says: nothing once it is dropped. May be empty.
    std::function<void(const GroupId& id, const std::string& content)> also;
    GroupKeyFiles* keys = nullptr;  // a group is kept with its key; none: there are no keys
    // Never made: where it is gone nothing is kept, as a drive may not be mounted there. May be
    // empty.
    std::string drive_path;
  };
  struct Options {
    std::vector<Domain> domains;  // by domain index
    bool are_copies = false;      // of what lies elsewhere, too: troubles are told by domain
    uint32_t groups_max = 256;
    std::chrono::milliseconds look_interval{1000};  // for files that somebody has removed
    std::function<void(const std::string& sentence)> trouble;  // on the writing thread
    // StateOf says something new of a group of the domain. On the writing thread; may be empty.
    std::function<void(uint32_t domain_index)> changed;
  };
  explicit DiskGroupFiles(Options options);
  ~DiskGroupFiles() override;  // writes what is queued first

  // A group that could not be written, or that somebody removed, is tried again at each look until
  // it is there.
  void Keep(uint32_t domain_index, const SpaceGroupSpec& spec) override;
  void Inherit(uint32_t domain_index, const SpaceGroupSpec& spec) override;
  void Drop(uint32_t domain_index, const GroupId& id) override;
  State StateOf(uint32_t domain_index, const GroupId& id) const override;
  bool IsLost(uint32_t domain_index, const GroupId& id) const override;
  GroupFilesTrouble TroubleOf(uint32_t domain_index) const override;
  // Without the groups that somebody else keeps.
  using IsKeptElsewhere = std::function<bool(const GroupId& id)>;
  GroupFilesTrouble TroubleOf(uint32_t domain_index, const IsKeptElsewhere& is_elsewhere) const;
  bool IsWhole(uint32_t domain_index, const GroupId& id) const override;
  void DestroyKey(uint32_t domain_index, const GroupId& id) override;
  bool AreKeysDestroyed(uint32_t domain_index) const override;
  // The keys of the domain's groups are wrapped anew, under the ring's first key. `done` with what
  // failed, on the writing thread. REQUIRES: the domain has keys.
  void SetRing(uint32_t domain_index, std::shared_ptr<const KeyRing> ring,
               std::function<void(const std::vector<std::string>& notes)> done);
  // Returns when everything kept so far has been tried; false after `timeout_us` without that: a
  // file cannot be written, and the object cannot be destroyed.
  bool Drain(uint64_t timeout_us);

 private:
  struct Writer;
  std::unique_ptr<Writer> writer_;
};

}  // namespace terrace
