#include "daemon/persist/drive_directory.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include "daemon/persist/group_key_file.h"
#include "daemon/persist/kept_file.h"
#include "daemon/persist/slab_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTitle = "terrace drive 1\n";
constexpr size_t kIdDigits = 16;
constexpr const char* kDirectoryUnsynced = "its directory cannot be synced";

std::string FileOf(const std::string& directory) { return directory + "/" + kDriveIdName; }

std::string FormatId(const std::string& domain_name, uint64_t id) {
  const std::string content = std::string(kTitle) + Hex16(id) + ' ' + domain_name + '\n';
  return content + KeptSealOf(content, DomainSecret{});  // no secret's: drives outlive secrets
}

// Regular files whose names `is_ours`; what else somebody has put there is nobody's block or key.
// `before` each goes.
template <typename IsOurs, typename Before>
Status RemoveAll(const std::string& directory, const IsOurs& is_ours, const Before& before) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (is_ours(at->path()) && fs::is_regular_file(at->symlink_status(gone))) {
      paths.push_back(at->path());
    }
  }
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return Status::Ok();
  }
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

Result<uint64_t> ReadDriveId(const std::string& directory, const std::string& domain_name) {
  const Status refused(StatusCode::kCorrupt, "it is damaged, or another domain's");
  const size_t file_bytes = FormatId(domain_name, 0).size();
  const Result<std::string> content = ReadKeptFile(FileOf(directory), file_bytes);
  if (!content.ok()) return content.status();
  if (content->size() != file_bytes) return refused;
  const char* const digits = content->data() + kTitle.size();
  uint64_t id = 0;
  std::from_chars(digits, digits + kIdDigits, id, 16);
  if (id == 0 || FormatId(domain_name, id) != *content) return refused;
  return id;
}

Status WriteDriveId(const std::string& directory, const std::string& domain_name, uint64_t id) {
  return WriteKeptFile(FileOf(directory), FormatId(domain_name, id));
}

// Keys first: who dies in between begins again, and finds slabs that nobody can read.
Status EmptyDrive(const std::string& directory, uint64_t* slab_count) {
  *slab_count = 0;
  TERRACE_RETURN_IF_ERROR(RemoveGroupKeys(directory + "/keys"));
  const auto is_slab = [](const fs::path& path) { return SlabIndexOf(path.filename()).ok(); };
  return RemoveAll(directory, is_slab, [&](const fs::path&) {
    ++*slab_count;
    return Status::Ok();
  });
}

Status RemoveGroupKeys(const std::string& key_directory) {
  const auto is_key = [](const fs::path& path) {
    return path.extension() == kGroupKeySuffix || IsGroupKeyDraft(path.native());
  };
  return RemoveAll(key_directory, is_key, OverwriteGroupKey);
}

Status RemoveSynced(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Status(StatusCode::kIo, "a file cannot be removed", errno);
  }
  return SyncDirectory(fs::path(path).parent_path(), kDirectoryUnsynced);
}

}  // namespace terrace
