// How many segments of memory each domain is to have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/config/config.h"

namespace terrace {

uint32_t SegmentsMaxOf(const DaemonConfig& config, size_t domain_index);
// Those that no other domain can take: one at least.
uint32_t GuaranteedSegmentsOf(const DaemonConfig& config, size_t domain_index);
// By domain: what it is guaranteed, and an equal part of what nobody is, up to what it may have.
// Together no more than dram_bytes.
std::vector<uint32_t> SegmentsExpected(const DaemonConfig& config);

}  // namespace terrace
