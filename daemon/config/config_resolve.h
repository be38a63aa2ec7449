// What a configuration says once its surroundings are known: defaults that depend on other keys or
// on who runs the daemon, and checks that span several keys.
//
// THREADING: any thread; asks the operating system for nothing but the environment.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// Command line options, which override the file.
struct ConfigOverrides {
  std::string socket_path;  // of the only domain
  std::string dram_bytes;   // "8GiB" or a number
};

// Who runs the daemon and what its surroundings say; decides default paths.
struct ConfigEnvironment {
  uint32_t uid = 0;
  std::string runtime_dir;      // $XDG_RUNTIME_DIR
  std::string state_directory;  // $STATE_DIRECTORY, set by systemd
  std::string state_home;       // $XDG_STATE_HOME
  std::string home;             // $HOME

  static ConfigEnvironment OfProcess();
};

// Applies `overrides`, fills in what depends on other keys and on who runs the daemon, adds the
// domain "default" when there is none, and checks what spans several keys. After kOk no field is
// unset.
Status ResolveConfig(const ConfigOverrides& overrides, const ConfigEnvironment& environment,
                     DaemonConfig* config, std::string* why);

}  // namespace terrace
