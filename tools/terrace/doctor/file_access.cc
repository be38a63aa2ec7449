#include "tools/terrace/doctor/file_access.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace terrace::tools {
namespace {

constexpr uint32_t kPermissionBits = 07777;
constexpr uint32_t kForOthers = 077;

std::string ModeAndOwner(const FileFacts& file) {
  return fmt::format("mode {:04o}, of uid {}", file.mode & kPermissionBits, file.uid);
}

// "/mnt" of "/mnt/d" and of "/mnt/d/"; "/" of "/".
std::string ParentOf(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return std::filesystem::path(path).parent_path();
}

bool IsAbsent(int error) { return error == ENOENT || error == ENOTDIR; }

}  // namespace

bool IsCredential(const std::string& path) { return path.starts_with("/run/credentials/"); }

std::optional<Unreadable> WhyUnreadable(const Subject& subject, const std::string& path,
                                        const FileFacts& file) {
  const UserFacts& user = subject.daemon;
  if (IsCredential(path)) return std::nullopt;
  for (auto directory = std::filesystem::path(path).parent_path(); directory.has_relative_path();
       directory = directory.parent_path()) {
    int unused_error = 0;
    const auto facts = subject.calls.Stat(directory, &unused_error);
    if (!facts || MayEnter(*facts, user)) continue;
    return Unreadable{.why = fmt::format("{} has {}: {} may not enter it", directory.string(),
                                         ModeAndOwner(*facts), user.name),
                      .remedy = fmt::format("sudo chmod o+x {}, or another place for {}",
                                            directory.string(), path)};
  }
  if (MayRead(file, user)) return std::nullopt;
  return Unreadable{.why = fmt::format("{}: {} may not read it", ModeAndOwner(file), user.name),
                    .remedy = fmt::format("sudo chown {} {}", user.chown_names(), path)};
}

void JudgeSecretFile(const Subject& subject, const std::string& path, const FileFacts& file,
                     const std::string& exposed, Finding* finding) {
  const UserFacts& user = subject.daemon;
  const uint32_t for_others = IsCredential(path) ? kForOthers & ~S_IRGRP : kForOthers;
  const auto unreadable = WhyUnreadable(subject, path, file);
  const std::string about = fmt::format("{}: {}", path, ModeAndOwner(file));
  if (!unreadable && (file.mode & for_others) == 0 && (file.uid == 0 || file.uid == user.uid)) {
    finding->found = fmt::format("{}, readable for {}", about, user.name);
    return;
  }
  finding->level = FindingLevel::kProblem;
  finding->found = about;
  if ((file.mode & for_others) != 0) {
    finding->meaning = "terraced refuses it: others may have read it. " + exposed;
    finding->remedy = fmt::format("sudo chmod 600 {}; draw a new one if it was read", path);
  } else if (unreadable) {
    finding->found = fmt::format("{}: {}", path, unreadable->why);
    finding->meaning = "terraced refuses to start: it reads the file as that user.";
    finding->remedy = unreadable->remedy;
  } else {
    finding->meaning = "terraced refuses it: it is neither root's nor the daemon's.";
    finding->remedy = fmt::format("sudo chown {} {}", user.chown_names(), path);
  }
}

std::string NearestThere(const Subject& subject, const std::string& path) {
  for (std::string at = path;; at = ParentOf(at)) {
    int error = 0;
    if (subject.calls.Stat(at, &error)) return at;
    if (!IsAbsent(error) || at == ParentOf(at)) return path;
  }
}

Making MakingOf(const Subject& subject, const std::string& path, MissingParents parents) {
  const UserFacts& user = subject.daemon;
  const auto is_units = [&subject](const std::string& directory) {
    return std::ranges::find(subject.unit_directories, directory) != subject.unit_directories.end();
  };
  if (is_units(path)) return {.is_units = true};
  const std::string parent = ParentOf(path);
  for (std::string at = parent;; at = ParentOf(at)) {
    int error = 0;
    const auto file = subject.calls.Stat(at, &error);
    if (file && !S_ISDIR(file->mode)) return {.why_not = at + " is no directory"};
    if (file && MayWrite(*file, user) && MayEnter(*file, user)) return {};
    if (file) {
      return {.why_not = fmt::format("{} has {}: {} may not write there", at, ModeAndOwner(*file),
                                     user.name)};
    }
    if (is_units(at)) return {.is_units = true};
    if (!IsAbsent(error)) return {.is_seen = false};
    if (parents == MissingParents::kRefused || at == ParentOf(at)) {
      return {.why_not = fmt::format("its parent {} is not there", parent)};
    }
  }
}

void MarkUnseen(const Subject& subject, const std::string& path, int error, Finding* finding) {
  finding->level = FindingLevel::kNote;
  finding->found =
      fmt::format("{}: {} may not look ({})", path, subject.own.name, std::strerror(error));
  finding->remedy = subject.command_as_root;
}

}  // namespace terrace::tools
