#include "daemon/config/installed_unit.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>

#include "daemon/config/config_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr char kUnitName[] = "terraced.service";
constexpr char kStateRoot[] = "/var/lib/";
constexpr char kRunRoot[] = "/run/";
// A file of a later one hides its like in those before.
constexpr const char* kUnitFolders[] = {"/lib/systemd/system", "/usr/lib/systemd/system",
                                        "/usr/local/lib/systemd/system", "/run/systemd/system",
                                        "/etc/systemd/system"};

// The file behind --config; none of a command without.
std::string ConfigOf(const std::string& command) {
  std::istringstream words(command);
  constexpr std::string_view kJoined = "--config=";
  for (std::string word; words >> word;) {
    if (word.starts_with(kJoined)) return word.substr(kJoined.size());
    if (word == "--config" && words >> word) return word;
  }
  return "";
}

// "/run/terrace" and "/run/x" of "terrace x:y"; none of an empty value, which takes back.
void TakeDirectories(const std::string& root, const std::string& value,
                     std::vector<std::string>* directories) {
  if (value.empty()) {
    std::erase_if(*directories, [&](const std::string& path) { return path.starts_with(root); });
  }
  std::istringstream words(value);
  for (std::string word; words >> word;) {
    directories->push_back(root + word.substr(0, word.find(':')));
  }
}

// What a file assigns in [Service] takes the place of what those before it did.
void TakeFile(const fs::path& path, InstalledUnit* unit, std::string* command) {
  std::ifstream file(path);
  bool is_service = false;
  for (std::string text; std::getline(file, text);) {
    for (std::string more; text.ends_with('\\') && std::getline(file, more);) {
      text.back() = ' ';
      text += more;
    }
    const std::string_view line = Trimmed(text);
    if (line.starts_with('[')) is_service = line == "[Service]";
    const size_t equals = line.find('=');
    if (!is_service || equals == line.npos || line.starts_with('#') || line.starts_with(';')) {
      continue;
    }
    const std::string_view key = Trimmed(line.substr(0, equals));
    const std::string value(Trimmed(line.substr(equals + 1)));
    if (key == "User") unit->user = value.empty() ? "root" : value;
    if (key == "ExecStart") *command = value;
    if (key == "RuntimeDirectory") TakeDirectories(kRunRoot, value, &unit->directories);
    if (key == "StateDirectory") {
      TakeDirectories(kStateRoot, value, &unit->directories);
      const std::string name = value.substr(0, value.find_first_of(" :"));
      unit->state_dir = name.empty() ? "" : kStateRoot + name;
    }
  }
}

// A file of no length says that there is no such unit, whatever drop-ins there are, and so does a
// link to /dev/null.
bool IsMasked(const fs::path& file) {
  std::error_code error;
  return fs::canonical(file, error) == "/dev/null" ||
         (fs::is_regular_file(file, error) && fs::file_size(file, error) == 0);
}

Account AccountOf(const passwd& entry) {
  return {.uid = entry.pw_uid, .gid = entry.pw_gid, .name = entry.pw_name};
}

}  // namespace

bool InstalledUnit::Reads(const std::string& path) const {
  std::error_code error;
  return !config_path.empty() && !path.empty() &&
         (path == config_path || fs::equivalent(path, config_path, error));
}

ConfigEnvironment InstalledUnit::Surroundings(uint32_t uid) const {
  return {.uid = uid, .state_directory = state_dir};
}

std::optional<InstalledUnit> FindInstalledUnit(const std::string& root) {
  fs::path main_file;
  std::map<std::string, fs::path> drop_ins;  // by name, across folders
  for (const char* folder : kUnitFolders) {
    std::error_code error;
    const fs::path file = fs::path(root + folder) / kUnitName;
    if (fs::exists(file, error)) main_file = file;
    fs::directory_iterator entries(file.string() + ".d", error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const fs::path& path = entries->path();
      if (path.extension() == ".conf") drop_ins[path.filename()] = path;
    }
  }
  InstalledUnit unit;
  std::string command;
  if (main_file.empty() || IsMasked(main_file)) return std::nullopt;
  TakeFile(main_file, &unit, &command);
  for (const auto& [name, path] : drop_ins) TakeFile(path, &unit, &command);
  if (command.empty()) return std::nullopt;
  unit.config_path = ConfigOf(command);
  return unit;
}

std::optional<Account> FindAccount(const std::string& user) {
  if (const passwd* entry = getpwnam(user.c_str())) return AccountOf(*entry);
  uint32_t uid = 0;
  const auto [end, error] = std::from_chars(user.data(), user.data() + user.size(), uid);
  if (error != std::errc() || end != user.data() + user.size()) return std::nullopt;
  const passwd* entry = getpwuid(uid);
  return entry == nullptr ? std::nullopt : std::optional(AccountOf(*entry));
}

Account OwnerAccount(uint32_t uid, uint32_t gid) {
  if (const passwd* entry = getpwuid(uid)) return AccountOf(*entry);
  return {.uid = uid, .gid = gid, .name = "uid " + std::to_string(uid)};
}

Status BecomeAccount(const Account& account, std::string* why) {
  const bool is_known = getpwnam(account.name.c_str()) != nullptr;
  const int grouped =
      is_known ? initgroups(account.name.c_str(), account.gid) : setgroups(0, nullptr);
  if (grouped == 0 && setgid(account.gid) == 0 && setuid(account.uid) == 0) return Status::Ok();
  const int error = errno;
  *why = "this process cannot go on as " + account.name + ": " + std::strerror(error);
  return Status(StatusCode::kIo, "another user cannot be taken on", error);
}

}  // namespace terrace
