// The eviction policies that a replay compares: those the daemon offers, and those from papers that
// it does not, because on prompts they lose to one it does (docs/POLICIES.md).
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "daemon/policy/eviction/policy.h"

namespace terrace::tools {

// In alphabetical order.
std::span<const std::string_view> ComparedPolicyNames();

// For a tier of `capacity_blocks`; nullptr if nothing has that name.
// REQUIRES: capacity_blocks > 0.
std::unique_ptr<EvictionPolicy> MakeComparedPolicy(std::string_view name, uint32_t capacity_blocks);

}  // namespace terrace::tools
