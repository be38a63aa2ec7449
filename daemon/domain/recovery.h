// Recovery: how a domain finds at start what its predecessor left: groups from their files, blocks
// from the catalog if it was closed in order, else from the slabs' own tables.
//
// THREADING: the start-up thread, before the first session. Blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/persist/catalog.h"
#include "daemon/store/restoration.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {

struct RecoveryOptions {
  uint32_t domain_index = 0;
  uint32_t tier_index = 0;  // of the NVMe tier among the domain's lower tiers
  DomainSecret secret{};
  std::string groups_directory;
  // Where group files are, too, of all drives: what the first lacks is copied there.
  std::vector<std::string> other_groups_directories;
  std::vector<std::string> slab_directories;  // one a disk, of this domain
  Restoration* restoration = nullptr;
  NvmeTier* tier = nullptr;    // none: groups alone are restored
  Catalog* catalog = nullptr;  // none: tables are read. Opened here, started by the caller after
};

enum class RecoverySource : uint8_t { kNone, kCatalog, kTables };
const char* RecoverySourceName(RecoverySource source);

struct RecoverySummary {
  RecoverySource source = RecoverySource::kNone;
  std::string why;  // not from the catalog
  uint64_t groups = 0;
  uint64_t groups_refused = 0;  // there is no room for more
  RestoreSummary restored;
  SlabRestore::Counts counts;
  uint64_t duration_us = 0;
  std::vector<std::string> notes;  // sentences a person should read
};

// A block whose group nobody knows is left on disk, and said: its group's file may come back.
// kIo: a disk cannot even be listed; what could be restored is. In any other case the domain is
// ready to serve. A catalog that was not believed is rewritten once the caller starts it.
Status RestoreDomain(const RecoveryOptions& options, RecoverySummary* summary);

}  // namespace terrace
