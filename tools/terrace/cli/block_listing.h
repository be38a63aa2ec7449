// The blocks of a domain as List pages give them, gathered for ls, tree and evict.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "terrace/client.h"
#include "terrace/protocol.h"

namespace terrace::tools {

// A listing beyond this is cut, and says so: 96 bytes each.
inline constexpr uint64_t kListedBlocksMax = uint64_t{1} << 22;

struct ListingQuery {
  BlockKey root;                 // zero: everything
  std::optional<GroupId> group;  // only its blocks
  uint64_t deadline_us = 0;      // of each page
};
struct Listing {
  std::vector<protocol::ListEntry> entries;  // parents before children
  bool is_cut = false;                       // kListedBlocksMax was reached
};

// On failure an explanation is on stderr already.
std::optional<Listing> FetchListing(Client& client, const ListingQuery& query);

// What people call the groups of this domain; ids that are not in it have no known name.
using GroupNames = std::map<GroupId, std::string>;

// A key from the command line. False, with the reason on stderr, unless it is 32 hex digits.
bool ParseKeyArgument(const std::string& text, BlockKey* key);

std::string FormatTiers(uint8_t tier_mask);                 // "dram+nvme"
std::string FormatFlags(const protocol::ListEntry& entry);  // "pinned,persisted"
nlohmann::json ToJson(const protocol::ListEntry& entry, const GroupNames& names);
std::string GroupLabel(const GroupId& group, const GroupNames& names);  // name, else hex

}  // namespace terrace::tools
