// The checks of `terrace doctor`: each looks at one thing and makes one row of it.
#pragma once

#include <vector>

#include "tools/terrace/doctor/finding.h"
#include "tools/terrace/doctor/subject.h"

namespace terrace::tools {

// ---- the host (host_checks.cc, memory_checks.cc) ----
Finding CheckKernel(const Subject& subject);
Finding CheckRing(const Subject& subject);
Finding CheckClock(const Subject& subject);
Finding CheckProcessor(const Subject& subject);
Finding CheckNodes(const Subject& subject);
Finding CheckGpu(const Subject& subject);
Finding CheckMemory(const Subject& subject);
Finding CheckHugePages(const Subject& subject);
Finding CheckSharedMemory(const Subject& subject);

// ---- limits and state of a process: the daemon's where it can be seen, else this shell's
// (process_checks.cc) ----
Finding CheckLockedMemory(const Subject& subject);
Finding CheckOpenFiles(const Subject& subject);
std::vector<Finding> CheckFileSize(const Subject& subject);  // none without drives
std::vector<Finding> CheckCores(const Subject& subject);     // none without a daemon

// ---- what the configuration names (config_checks.cc, file_checks.cc,
// drive_checks.cc) ----
Finding CheckConfig(const Subject& subject);
std::vector<Finding> CheckSecrets(const Subject& subject);      // one a domain
std::vector<Finding> CheckFiles(const Subject& subject);        // keys, a login, certificates
std::vector<Finding> CheckDirectories(const Subject& subject);  // of state, traces, drives; sockets
std::vector<Finding> CheckVolumes(const Subject& subject);      // one a drive
std::vector<Finding> CheckSpace(const Subject& subject);        // the same
std::vector<Finding> CheckDrives(const Subject& subject);       // the same
std::vector<Finding> CheckRedis(const Subject& subject);        // one a server

// ---- the daemon (daemon_checks.cc) ----
Finding CheckSocket(const Subject& subject);
std::vector<Finding> CheckDaemon(const Subject& subject);  // none where none answers

// All of them, in the order in which they are printed.
std::vector<Finding> Examine(const Subject& subject);

}  // namespace terrace::tools
