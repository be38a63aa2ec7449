// Puts together what `terrace doctor` looks at.
#pragma once

#include <string>

#include "tools/terrace/cli/verb.h"
#include "tools/terrace/doctor/subject.h"

namespace terrace::tools {

// What the configuration is read from, and with which command line.
struct DaemonCommand {
  std::string config_path;
  std::string socket_path;
  std::string dram_bytes;
};
// Of `words`, a /proc/PID/cmdline: NUL behind each word.
DaemonCommand ParseDaemonCommand(const std::string& words);

// To look as root with what this command was told; empty is not.
std::string CommandAsRoot(const std::string& config_path, const std::string& socket_path);

// `config_path` empty: the running daemon's, else the one that is installed.
Subject GatherSubject(const HostFiles& files, const HostCalls& calls, const DaemonAddress& address,
                      const std::string& config_path);

}  // namespace terrace::tools
