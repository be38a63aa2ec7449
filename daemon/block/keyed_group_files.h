// KeyedGroupFiles: the files of groups in a daemon whose domains may encrypt what lies on drives:
// each group has a key there, and to destroy it is to erase the group's blocks.
//
// THREADING: store thread; none blocks.
#pragma once

#include "daemon/block/cache_domain.h"
#include "daemon/block/seams.h"

namespace terrace {

class KeyedGroupFiles : public GroupFiles {
 public:
  // A group that a predecessor has kept has all that its next blocks need.
  virtual bool IsWhole(uint32_t domain_index, const GroupId& id) const = 0;
  // What was written of the group is unreadable from now on, in memory at once and, once
  // AreKeysDestroyed, for whoever has the drive. A group that is open gets another key, and is
  // kComing until then. Nothing in a domain that does not encrypt.
  virtual void DestroyKey(uint32_t domain_index, const GroupId& id) = 0;
  virtual bool AreKeysDestroyed(uint32_t domain_index) const = 0;
};

// Null: no domain encrypts.
inline KeyedGroupFiles* KeyedFilesOf(GroupFiles* files) {
  return dynamic_cast<KeyedGroupFiles*>(files);
}

// Of the groups at these places, which are erased as a whole.
inline void DestroyGroupKeys(CacheDomain& domain, uint32_t first, uint32_t end) {
  KeyedGroupFiles* const files = KeyedFilesOf(domain.limits.group_files);
  for (uint32_t g = first; files != nullptr && g < end; ++g) {
    Group& group = *domain.groups[g];
    files->DestroyKey(domain.domain_index, group.id());
    if (!files->IsWhole(domain.domain_index, group.id())) group.has_file = false;
  }
}

}  // namespace terrace
