// The eviction policies that the daemon offers, by name, as its configuration says them.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "daemon/policy/eviction/policy.h"

namespace terrace {

// In alphabetical order.
std::span<const std::string_view> EvictionPolicyNames();

// For a tier of `capacity_blocks`; nullptr if nothing has that name.
// REQUIRES: capacity_blocks > 0.
std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(std::string_view name, uint32_t capacity_blocks);

}  // namespace terrace
