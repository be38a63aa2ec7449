// Names of what is counted by kind, as status and metrics have them.
#pragma once

#include <array>
#include <string_view>

#include "daemon/block/domain_stats.h"
#include "daemon/session/transport.h"
#include "daemon/socket/acceptor.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

inline constexpr std::array<std::string_view, protocol::kTierKindCount> kTierNames = {
    "hbm", "dram", "nvme", "redis"};
inline constexpr std::array<std::string_view, protocol::kMissCauseCount> kMissCauseNames = {
    "cold", "capacity", "quota", "admission", "expired", "mismatch", "corrupt", "late", "operator"};
inline constexpr std::array<std::string_view, kTimedVerbCount> kTimedVerbNames = {
    "acquire", "reserve", "commit"};
inline constexpr std::array<std::string_view, kSessionRefusalCount> kSessionRefusalNames = {
    "sessions_per_process_max", "sessions_per_uid_max", "sessions_max"};
inline constexpr std::array<std::string_view, 3> kServingModeNames = {  // by ServingMode
    "serving", "draining", "bypassed"};
inline constexpr std::array<std::string_view, kConnectionRefusalCount> kConnectionRefusalNames = {
    "not_allowed", "too_fast", "no_descriptors"};
inline constexpr std::array<std::string_view, kCloseReasonCount> kCloseReasonNames = {
    "client_left", "malformed", "descriptors", "refused", "slow_reader", "no_buffers", "no_hello"};

}  // namespace terrace
