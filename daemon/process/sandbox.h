// Sandbox: what this process gives up because it never needs it, so that whoever takes it over has
// less: files are made and changed below a few directories only and nothing is executed (Landlock);
// no process is started, looked into or given another user, no namespace, mount, module or ring is
// made, no memory becomes executable (seccomp). Units and containers narrow it further.
//
// What a kernel or a container does not let it give up is said, and done without.
//
// THREADING: ConfineFiles while there is one thread; ConfineCalls at any time, for all threads.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// Both as the configuration wants them. Of files: `*unconfined` is what could not be given up, and
// why; of calls the log says that. An error, with `*why`, where the sandbox is to be on and is not.
Status ConfineFilesOf(const DaemonConfig& config, std::string* unconfined, std::string* why);
Status ConfineCallsOf(const DaemonConfig& config, std::string* why);

// Whether a GPU's driver works in this process.
bool UsesGpu(const DaemonConfig& config);

// The directories and files below which a daemon of that configuration writes.
std::vector<std::string> WrittenPaths(const DaemonConfig& config);

// From here on this process and what it starts makes and changes files below `written` only, those
// that are open already, and /dev/null; it executes nothing. kUnsupported with `*why`: it may still
// do all it could.
Status ConfineFiles(std::span<const std::string> written, std::string* why);

struct CallsNeeded {
  bool executable_memory = false;  // of a driver that compiles
};
// kUnsupported with `*why`: nothing has changed.
Status ConfineCalls(const CallsNeeded& needed, std::string* why);

}  // namespace terrace
