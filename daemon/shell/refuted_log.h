// Who wrote bytes that are not what their own checksums say, in the log.
#pragma once

#include <functional>

#include "daemon/block/seams.h"
#include "daemon/config/config.h"
#include "daemon/store/store.h"

namespace terrace {

// For StoreOptions::on_refuted: a line a second at most. `clock` outlives it.
std::function<void(uint32_t domain_index, const RefutedWriter& writer)> LogRefuted(
    const DaemonConfig& config, const Clock& clock);

}  // namespace terrace
