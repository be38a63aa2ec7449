// What `terrace doctor` looks at: a host, a configuration, and the daemon, if one answers. Gathered
// once; the checks are plain functions of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/doctor/host.h"

namespace terrace::tools {

// Whom permissions are asked for.
struct UserFacts {
  uint32_t uid = 0;
  std::vector<uint32_t> gids;
  std::string name;  // for people: "terrace", or "uid 1000"

  bool Has(uint32_t gid) const;
  // As `chown` takes it; of a name, with its group.
  std::string chown_name() const { return name.starts_with("uid ") ? name.substr(4) : name; }
  std::string chown_names() const { return name.starts_with("uid ") ? chown_name() : name + ":"; }
};

enum class ConfigState : uint8_t {
  kRead,
  kAbsent,   // nobody named one, and there is none: defaults
  kUnread,   // it is there, and this user may not read it
  kGone,     // the daemon was started with it, and it is no file that can be read again
  kRefused,  // it is wrong, or the one that was named is not there
};

// How the socket answered.
enum class SocketState : uint8_t {
  kAnswers,
  kMute,     // somebody listens, and does not answer in time
  kDenied,   // this user may not
  kRefused,  // the daemon answers, and has turned this user away
  kSilent,   // nobody listens
};

struct Subject {
  const HostFiles& files;
  const HostCalls& calls;

  std::string config_path;
  ConfigState config_state = ConfigState::kAbsent;
  std::string config_why;          // of kUnread and kRefused
  DaemonConfig config;             // defaults unless it was read
  bool is_config_daemons = false;  // the daemon's own file, not a draft
  // What systemd makes before a start with that file: StateDirectory= and RuntimeDirectory=.
  std::vector<std::string> unit_directories;

  std::string socket_path;
  bool is_socket_named = false;  // by the person who asks
  SocketState socket_state = SocketState::kSilent;
  std::string socket_why;    // unless it answers: a sentence with its remedy
  std::string socket_group;  // the socket's, by name or as "gid 7"; empty: it cannot be seen

  std::optional<StatsView> stats;  // of the daemon that answers
  // Of the memory behind the configuration's sockets. Absent: not all who answer there tell.
  std::optional<uint64_t> huge_page_bytes;
  bool has_small_pages = false;  // some of that memory is of 4 KiB pages
  std::optional<uint32_t> pid;   // the same, where this namespace has its process
  std::string version;           // of this command, such as "0.2.0"

  UserFacts own;     // who asks
  UserFacts daemon;  // whose the daemon is, or would be

  // As root, who may look: "sudo terrace doctor" with the same file and socket as this one was
  // told.
  std::string command_as_root = "sudo terrace doctor";
};

// The process `pid`'s user, or this one's for "self"; absent if /proc does not say.
std::optional<UserFacts> UserOfProcess(const HostFiles& files, const std::string& pid);
// A user of /etc/passwd with its groups of /etc/group.
std::optional<UserFacts> UserNamed(const HostFiles& files, const std::string& name);
// A group's name of /etc/group, else "gid 7".
std::string GroupNamed(const HostFiles& files, uint32_t gid);
// Whether the mode of a file lets a user write to it, read it, or enter the directory that it is.
bool MayWrite(const FileFacts& file, const UserFacts& user);
bool MayRead(const FileFacts& file, const UserFacts& user);
bool MayEnter(const FileFacts& file, const UserFacts& user);

}  // namespace terrace::tools
