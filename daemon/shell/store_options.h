// What of the configuration concerns the store as a whole, whose domains are added by whoever has
// their memory, and the sessions.
#pragma once

#include <memory>
#include <vector>

#include "daemon/arenas/domain_arena.h"
#include "daemon/block/domain_options.h"
#include "daemon/config/config.h"
#include "daemon/session/session.h"
#include "terrace/domain_secret.h"

namespace terrace {

StoreOptions StoreOptionsOf(const DaemonConfig& config);
// `secrets` and `arenas` in the domains' order.
SessionTableOptions SessionOptionsOf(const DaemonConfig& config, uint64_t boot_id,
                                     const std::vector<DomainSecret>& secrets,
                                     const std::vector<std::unique_ptr<DomainArena>>& arenas);

}  // namespace terrace
