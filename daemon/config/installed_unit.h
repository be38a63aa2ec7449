// The unit that systemd starts terraced from on this host, and its user: who looks at what a
// daemon will find asks as that user, since root may read everything.
//
// THREADING: BecomeAccount while there is one thread; the others at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/config_resolve.h"
#include "terrace/status.h"

namespace terrace {

struct InstalledUnit {
  std::string user = "root";             // a name, or a number
  std::string config_path;               // behind --config of its command; empty: none
  std::string state_dir;                 // of StateDirectory=; empty: none
  std::vector<std::string> directories;  // that and RuntimeDirectory=: made before each start

  // Whether `path` is the file that it starts terraced with, by any name.
  bool Reads(const std::string& path) const;
  // What it starts terraced in, as the user `uid`.
  ConfigEnvironment Surroundings(uint32_t uid) const;
};

// terraced.service and its drop-ins, as systemd puts them together, below `root`. Absent: there is
// none, or it starts nothing.
std::optional<InstalledUnit> FindInstalledUnit(const std::string& root = "");

struct Account {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string name;  // as the host knows it; else "uid 7"
};
// Of a name or a number that the host knows.
std::optional<Account> FindAccount(const std::string& user);
// Who owns a file.
Account OwnerAccount(uint32_t uid, uint32_t gid);
// This process goes on as that user, with its groups, for good. kIo with `*why`: as before, or with
// less.
Status BecomeAccount(const Account& account, std::string* why);

}  // namespace terrace
