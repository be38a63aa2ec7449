#include "tools/terrace/doctor/file_access.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

namespace terrace::tools {
namespace {

constexpr uint32_t kPermissionBits = 07777;
constexpr uint32_t kForOthers = 077;

std::string ModeAndOwner(const FileFacts& file) {
  return fmt::format("mode {:04o}, of uid {}", file.mode & kPermissionBits, file.uid);
}

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
                    .remedy = fmt::format("sudo chown {}: {}", user.name, path)};
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
    finding->remedy = fmt::format("sudo chown {}: {}", user.name, path);
  }
}

void MarkUnseen(const Subject& subject, const std::string& path, int error, Finding* finding) {
  finding->level = FindingLevel::kNote;
  finding->found =
      fmt::format("{}: {} may not look ({})", path, subject.own.name, std::strerror(error));
  finding->remedy = "sudo terrace doctor";
}

}  // namespace terrace::tools
