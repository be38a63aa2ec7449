// What of the configuration concerns the store as a whole; its domains are added by whoever has
// their memory.
#pragma once

#include "daemon/block/domain_options.h"
#include "daemon/config/config.h"

namespace terrace {

StoreOptions StoreOptionsOf(const DaemonConfig& config);

}  // namespace terrace
