// The requests of protocol_operator.h over an AdminLink. Each tells the person on stderr what went
// wrong, if anything does: of a daemon that is older than the verb that, too.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/protocol_operator.h"
#include "tools/terrace/cli/admin_link.h"

namespace terrace::tools {

std::optional<protocol::EvictReply> AskEvictWhere(AdminLink& link,
                                                  const protocol::EvictWhereRequest& request,
                                                  std::string* why);

struct PinAnswer {
  protocol::NamedPinReply reply;
  std::vector<protocol::NamedPinEntry> entries;
};
// kClear of a pin that there is not: told, too.
std::optional<PinAnswer> AskNamedPin(AdminLink& link, protocol::NamedPinRequest request,
                                     std::span<const BlockKey> keys);
// The pins that keep the block; none of a daemon that is older than the verb, which is no error.
std::vector<protocol::NamedPinEntry> PinsOf(AdminLink& link, const BlockKey& key);

struct LogAnswer {
  protocol::OperatorLogReply reply;
  std::vector<protocol::OperatorLogEntry> entries;  // the latest first
};
std::optional<LogAnswer> AskOperatorLog(AdminLink& link, uint32_t entry_count_max);

// False, told on stderr, unless `domain` is empty or the name of the daemon's domain.
bool IsDomain(const AdminLink& link, std::string_view domain);

// "dram" to its TierKind. REQUIRES: it is one of them.
protocol::TierKind TierNamed(std::string_view name);
// A text of the protocol: up to its first zero.
template <size_t kBytes>
std::string TextOf(const char (&text)[kBytes]) {
  const std::string_view all(text, kBytes);
  return std::string(all.substr(0, all.find('\0')));
}

}  // namespace terrace::tools
