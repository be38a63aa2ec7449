#include "daemon/persist/group_key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "terrace/open_file.h"

namespace terrace {

namespace fs = std::filesystem;

static std::vector<fs::path> FilesBeside(const std::string& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  return paths;
}

bool IsGroupKeyDraft(std::string_view path) {
  if (!path.ends_with(kGroupKeyDraftSuffix)) return false;
  path.remove_suffix(kGroupKeyDraftSuffix.size());
  return path.ends_with(kGroupKeySuffix);
}

std::vector<std::string> GroupKeyDraftsIn(const std::string& directory) {
  std::vector<std::string> drafts;
  for (const fs::path& path : FilesBeside(directory)) {
    if (IsGroupKeyDraft(path.native())) drafts.push_back(path.native());
  }
  return drafts;
}

std::vector<GroupId> GroupsOfKeysIn(const std::string& directory) {
  std::vector<GroupId> groups;
  for (const fs::path& path : FilesBeside(directory)) {
    if (path.extension() != kGroupKeySuffix) continue;
    const Result<GroupId> id = ParseId<GroupIdTag>(path.stem().string());
    if (id.ok()) groups.push_back(*id);
  }
  return groups;
}

bool IsNoGroupKey(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

bool SaysNoGroupKey(int error) { return error == ENOENT || error == ENOTDIR; }

Status GroupKeyErrno(const char* what) { return Status(StatusCode::kIo, what, errno); }

Status ReadGroupKey(int fd, GroupKeyContent* content) {
  const std::span<std::byte> all(content->front().data(), kGroupKeyFileBytes);
  std::ranges::fill(all, std::byte{0});
  size_t at = 0;
  while (at < all.size()) {
    const ssize_t got = pread(fd, all.data() + at, all.size() - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return GroupKeyErrno("cannot read the key's file");
    if (got == 0) break;
    at += static_cast<size_t>(got);
  }
  return Status::Ok();
}

bool WriteGroupKey(int fd, std::span<const std::byte> bytes, off_t offset) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(done));
    offset += done;
  }
  return true;
}

// In place and no further than it reaches, which a full drive allows.
Status OverwriteGroupKey(const std::string& path) {
  const OpenFile file(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (file.fd() < 0 && SaysNoGroupKey(errno)) {
    return Status(StatusCode::kNotFound, "there is no such key's file");
  }
  struct stat about {};
  if (file.fd() < 0 || fstat(file.fd(), &about) != 0) {
    return GroupKeyErrno("cannot open the key's file");
  }
  if (!S_ISREG(about.st_mode)) return Status(StatusCode::kIo, "the key's file is none", EINVAL);
  const GroupKeyContent zeros{};
  const size_t size_bytes = std::min(static_cast<size_t>(about.st_size), kGroupKeyFileBytes);
  const std::span<const std::byte> all(zeros.front().data(), size_bytes);
  if (WriteGroupKey(file.fd(), all, 0) && fsync(file.fd()) == 0) return Status::Ok();
  return GroupKeyErrno("cannot overwrite the key's file");
}

}  // namespace terrace
