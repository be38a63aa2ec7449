// How many files the daemon may have open, and how long they may be.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// Raises the soft limit, as far as the hard one allows, to what the configuration needs, with any
// size that the drives' tier may be given while the daemon runs. `*fds_max` is the limit then. Not
// kOk: sessions alone would not fit; `*why` names the limit and the remedy.
Status RaiseFdLimit(const DaemonConfig& config, uint64_t* fds_max, std::string* why);

// kIo: this process may not make a file as long as a slab's; `*why` names the limit and the remedy.
Status CheckFileSizeLimit(const DaemonConfig& config, std::string* why);

}  // namespace terrace
