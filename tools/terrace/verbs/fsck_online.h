// FsckOnline: asks a running daemon to check one domain's persistent tier, some slots at a time,
// and adds the answers up to the report that RunFsck would give. Closing the connection ends it.
#pragma once

#include <functional>
#include <string>

#include "daemon/persist/fsck.h"
#include "terrace/status.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

struct FsckOnlineOptions {
  DaemonAddress address;
  std::string domain;  // any other is refused; empty: the socket's
  FsckPayloads payloads = FsckPayloads::kLeave;
  FsckMode mode = FsckMode::kLook;
  uint64_t verify_bytes_per_second = 0;  // > 0 if payloads are verified
  uint64_t problems_listed_max = 1000;   // more are counted only
  // Now and then while payloads are verified.
  std::function<void(uint64_t bytes_done)> progress;
};

// False after telling the person why not. `*domain` is the domain's name.
bool FsckOnline(const FsckOnlineOptions& options, std::string* domain, FsckReport* report);

}  // namespace terrace::tools
