// Who wrote bytes that are not what their own checksums say, in the log.
#pragma once

#include <functional>

#include "daemon/block/seams.h"
#include "daemon/config/config.h"
#include "daemon/session/session.h"
#include "daemon/store/store.h"

namespace terrace {

// Sets describe_writer, and on_refuted: a line a second at most. `clock` and `sessions` outlive it.
void WatchWriters(const DaemonConfig& config, const Clock& clock, const SessionTable& sessions,
                  StoreOptions* options);

}  // namespace terrace
