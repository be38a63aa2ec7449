// A domain's directory on a drive, as a start finds it: whose it is, and how it begins without what
// it has (docs/DISK_FORMAT.md, Files).
//
// All block. REQUIRES: the directory is locked, and so nobody else's.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace {

inline constexpr char kDriveIdName[] = "drive-id";

// By which the domain's directory is known wherever its drive is mounted; never 0. kNotFound: it
// has none yet. kCorrupt: what is there was not written by WriteDriveId, or for another domain.
// kIo.
Result<uint64_t> ReadDriveId(const std::string& directory, const std::string& domain_name);
// Synced. kIo.
Status WriteDriveId(const std::string& directory, const std::string& domain_name, uint64_t id);

// The directory loses its slabs, and keys of groups that lie there: these are overwritten first.
// kIo: something is left.
Status EmptyDrive(const std::string& directory, uint64_t* slab_count);
// The keys alone. Nothing of a directory that is not there. kIo: as EmptyDrive.
Status RemoveGroupKeys(const std::string& key_directory);
// The file goes, and no loss of power brings it back. kIo.
Status RemoveSynced(const std::string& path);

}  // namespace terrace
