// Places of a domain's groups: which index a group gets, and what becomes of the group it replaces.
// A replaced group's spec stays kept while a successor might still find a block of it.
//
// THREADING: the store thread. LIMITS: groups_max groups a domain; DomainGroups::kForgottenMax
// replaced ones wait for their last erasure.
#pragma once

#include <cstdint>

#include "daemon/block/cache_domain.h"
#include "terrace/error.h"
#include "terrace/space.h"

namespace terrace {

// Opens a group that the domain does not have: in place of `idle`, unless that is kAllGroups. Its
// index in *place.
Error AddGroup(CacheDomain& domain, const SpaceGroupSpec& spec, uint32_t idle, uint32_t* place);

// Lets the specs of replaced groups go whose blocks no successor will find; some a call.
void DropForgotten(CacheDomain& domain);

}  // namespace terrace
