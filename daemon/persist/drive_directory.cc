#include "daemon/persist/drive_directory.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include "daemon/persist/group_key_files.h"
#include "daemon/persist/kept_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTitle = "terrace drive 1\n";
constexpr size_t kIdBytes = 17;  // 16 hex digits, a line's end
constexpr std::string_view kSlabExtension = ".terrace";
constexpr const char* kDirectoryUnsynced = "its directory cannot be synced";

std::string FileOf(const std::string& directory) { return directory + "/" + kDriveIdName; }

std::string FormatId(uint64_t id) {
  const std::string content = std::string(kTitle) + Hex16(id) + '\n';
  return content + KeptSealOf(content, DomainSecret{});  // no secret's: drives outlive secrets
}

// The files with that extension; `before` each goes.
template <typename Before>
Status RemoveAll(const std::string& directory, std::string_view extension, const Before& before) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == extension) paths.push_back(at->path());
  }
  if (error == std::errc::no_such_file_or_directory) return Status::Ok();
  if (error) return Status(StatusCode::kIo, "it cannot be listed", error.value());
  for (const fs::path& path : paths) {
    TERRACE_RETURN_IF_ERROR(before(path));
    if (unlink(path.c_str()) != 0) {
      return Status(StatusCode::kIo, "a file cannot be removed", errno);
    }
  }
  return SyncDirectory(directory, kDirectoryUnsynced);
}

}  // namespace

Result<uint64_t> ReadDriveId(const std::string& directory) {
  const Status refused(StatusCode::kCorrupt, "it is damaged");
  constexpr size_t kFileBytes = kTitle.size() + kIdBytes + kKeptSealBytes;
  const Result<std::string> content = ReadKeptFile(FileOf(directory), kFileBytes);
  if (!content.ok()) return content.status();
  std::string_view inside;
  if (!UnsealKept(*content, kTitle, DomainSecret{}, &inside) || inside.size() != kIdBytes) {
    return refused;
  }
  uint64_t id = 0;
  std::from_chars(inside.data(), inside.data() + inside.size() - 1, id, 16);
  if (id == 0 || FormatId(id) != *content) return refused;
  return id;
}

Status WriteDriveId(const std::string& directory, uint64_t id) {
  return WriteKeptFile(FileOf(directory), FormatId(id));
}

// Keys first: who dies in between begins again, and finds slabs that nobody can read.
Status EmptyDrive(const std::string& directory, uint64_t* slab_count) {
  *slab_count = 0;
  TERRACE_RETURN_IF_ERROR(RemoveGroupKeys(directory + "/keys"));
  return RemoveAll(directory, kSlabExtension, [&](const fs::path&) {
    ++*slab_count;
    return Status::Ok();
  });
}

Status RemoveGroupKeys(const std::string& key_directory) {
  return RemoveAll(key_directory, kGroupKeySuffix, OverwriteGroupKey);
}

Status RemoveSynced(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Status(StatusCode::kIo, "a file cannot be removed", errno);
  }
  return SyncDirectory(fs::path(path).parent_path(), kDirectoryUnsynced);
}

}  // namespace terrace
