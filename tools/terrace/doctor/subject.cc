#include "tools/terrace/doctor/subject.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

namespace terrace::tools {
namespace {

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, at);) words.push_back(word);
  return words;
}

std::optional<uint32_t> NumberOf(std::string_view text) {
  uint32_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest == text.data()) return std::nullopt;
  return number;
}

std::string NameOf(const HostFiles& files, uint32_t uid) {
  for (const std::string& line : Split(files.Read("/etc/passwd").value_or(""), '\n')) {
    const std::vector<std::string> fields = Split(line, ':');
    if (fields.size() >= 4 && NumberOf(fields[2]) == uid) return fields[0];
  }
  return "uid " + std::to_string(uid);
}

// `bit` is what of the mode lets those in that are neither its owner nor of its group.
bool May(const FileFacts& file, const UserFacts& user, uint32_t bit) {
  constexpr uint32_t kToGroup = 3, kToOwner = 6;
  if (user.uid == 0) return true;
  if (user.uid == file.uid) return (file.mode & bit << kToOwner) != 0;
  if (user.Has(file.gid)) return (file.mode & bit << kToGroup) != 0;
  return (file.mode & bit) != 0;
}

}  // namespace

bool UserFacts::Has(uint32_t gid) const {
  return std::find(gids.begin(), gids.end(), gid) != gids.end();
}

std::optional<UserFacts> UserOfProcess(const HostFiles& files, const std::string& pid) {
  const std::string path = "/proc/" + pid + "/status";
  const auto uids = files.ReadField(path, "Uid");
  if (!uids) return std::nullopt;
  // real, effective, saved, of files
  std::istringstream uid_words(*uids);
  std::istringstream gid_words(files.ReadField(path, "Gid").value_or("") + " " +
                               files.ReadField(path, "Groups").value_or(""));
  UserFacts user;
  uint32_t real_uid = 0;
  if (!(uid_words >> real_uid >> user.uid)) return std::nullopt;
  for (uint32_t gid = 0; gid_words >> gid;) user.gids.push_back(gid);
  user.name = NameOf(files, user.uid);
  return user;
}

std::optional<UserFacts> UserNamed(const HostFiles& files, const std::string& name) {
  for (const std::string& line : Split(files.Read("/etc/passwd").value_or(""), '\n')) {
    const std::vector<std::string> fields = Split(line, ':');
    if (fields.size() < 4 || fields[0] != name) continue;
    const auto uid = NumberOf(fields[2]), gid = NumberOf(fields[3]);
    if (!uid || !gid) return std::nullopt;
    UserFacts user{.uid = *uid, .gids = {*gid}, .name = name};
    for (const std::string& group : Split(files.Read("/etc/group").value_or(""), '\n')) {
      const std::vector<std::string> parts = Split(group, ':');
      if (parts.size() < 4) continue;
      const std::vector<std::string> members = Split(parts[3], ',');
      const auto id = NumberOf(parts[2]);
      if (id && std::find(members.begin(), members.end(), name) != members.end()) {
        user.gids.push_back(*id);
      }
    }
    return user;
  }
  return std::nullopt;
}

std::string GroupNamed(const HostFiles& files, uint32_t gid) {
  for (const std::string& line : Split(files.Read("/etc/group").value_or(""), '\n')) {
    const std::vector<std::string> fields = Split(line, ':');
    if (fields.size() >= 3 && NumberOf(fields[2]) == gid) return fields[0];
  }
  return "gid " + std::to_string(gid);
}

bool MayWrite(const FileFacts& file, const UserFacts& user) { return May(file, user, S_IWOTH); }

bool MayRead(const FileFacts& file, const UserFacts& user) { return May(file, user, S_IROTH); }

bool MayEnter(const FileFacts& file, const UserFacts& user) { return May(file, user, S_IXOTH); }

}  // namespace terrace::tools
