// What the causes and reasons of protocol_introspection.h are called.
#pragma once

#include <array>
#include <string_view>

#include "terrace/protocol_introspection.h"

namespace terrace::tools {

inline constexpr std::array<std::string_view, protocol::kMissCauseCount> kMissCauseNames = {
    "cold", "capacity", "quota", "admission", "expired", "mismatch", "corrupt", "late", "operator"};
inline constexpr std::array<std::string_view, protocol::kTierKindCount> kTierKindNames = {
    "hbm", "dram", "nvme", "redis"};

}  // namespace terrace::tools
