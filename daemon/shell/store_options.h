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
// Of one domain, without its memory, tiers and seams.
DomainOptions DomainOptionsOf(const DaemonConfig& config, size_t domain_index);
// Of one domain's memory, without its secret.
DomainArena::Options ArenaOptionsOf(const DaemonConfig& config, size_t domain_index);
// What sessions are held to, without domains and boot id.
SessionTableOptions SessionLimitsOf(const DaemonConfig& config);
// `secrets` and `arenas` in the domains' order.
SessionTableOptions SessionOptionsOf(const DaemonConfig& config, uint64_t boot_id,
                                     const std::vector<DomainSecret>& secrets,
                                     const std::vector<std::unique_ptr<DomainArena>>& arenas);

}  // namespace terrace
