// What of the configuration concerns the store as a whole; its domains are added by whoever has
// their memory.
#pragma once

#include "daemon/config/config.h"
#include "daemon/store/store.h"

namespace terrace {

StoreOptions StoreOptionsOf(const DaemonConfig& config);

}  // namespace terrace
