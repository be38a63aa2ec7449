#include "tools/terrace/cli/block_listing.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "terrace/protocol_listing.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, protocol::kTierKindCount> kTierNames = {"hbm", "dram",
                                                                               "nvme", "redis"};

std::vector<std::string> TierNames(uint8_t tier_mask) {
  std::vector<std::string> names;
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    if ((tier_mask >> tier & 1) != 0) names.emplace_back(kTierNames[tier]);
  }
  return names;
}

std::string_view StateName(protocol::BlockState state) {
  switch (state) {
    case protocol::BlockState::kAbsent:
      return "absent";
    case protocol::BlockState::kReserved:
      return "reserved";
    case protocol::BlockState::kSealed:
      return "sealed";
  }
  return "unknown";
}

}  // namespace

std::optional<Listing> FetchListing(Client& client, const ListingQuery& query) {
  Listing listing;
  uint64_t cursor = 0;
  do {
    protocol::ListRequest request;
    request.entry_count_max = protocol::kBlocksPerTurnMax;
    request.root = query.root;
    auto page = client.List(request, &cursor, query.deadline_us);
    if (!page.ok()) {
      FailRequest(client, "the daemon did not answer List", page.status());
      return std::nullopt;
    }
    for (const protocol::ListEntry& entry : *page) {
      if (query.group && entry.group != *query.group) continue;
      if (listing.entries.size() == kListedBlocksMax) {
        listing.is_cut = true;
        return listing;
      }
      listing.entries.push_back(entry);
    }
  } while (cursor != 0);
  return listing;
}

bool ParseKeyArgument(const std::string& text, BlockKey* key) {
  Result<BlockKey> parsed = ParseId<BlockKeyTag>(text);
  if (!parsed.ok()) {
    Fail(
        fmt::format("'{}' ({} characters) is no block key: a key is 32 hex digits, as `terrace ls` "
                    "prints it",
                    text, text.size()));
    return false;
  }
  if (parsed->is_zero()) {
    Fail(fmt::format("'{}' is no block's key: all zeros stand for every block", text));
    return false;
  }
  *key = *parsed;
  return true;
}

std::string FormatTiers(uint8_t tier_mask) {
  std::string text;
  for (const std::string& name : TierNames(tier_mask)) text += (text.empty() ? "" : "+") + name;
  return text.empty() ? "-" : text;
}

std::string FormatFlags(const protocol::ListEntry& entry) {
  std::string text;
  auto add = [&text](std::string_view word) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", word);
  };
  if (entry.state != protocol::BlockState::kSealed) add(StateName(entry.state));
  if ((entry.flags & protocol::kQueriedPinned) != 0) add("pinned");
  if ((entry.flags & protocol::kQueriedPersisted) != 0) add("persisted");
  if ((entry.flags & protocol::kQueriedNoStore) != 0) add("no store");
  if (entry.priority != protocol::kPriorityDefault) add(fmt::format("priority {}", entry.priority));
  if (entry.expires_in_s != 0) add(fmt::format("expires in {} s", entry.expires_in_s));
  return text;
}

std::string GroupLabel(const GroupId& group, const GroupNames& names) {
  auto found = names.find(group);
  return found == names.end() ? ToHex(group) : found->second;
}

nlohmann::json ToJson(const protocol::ListEntry& entry, const GroupNames& names) {
  nlohmann::json document = {
      {"key", ToHex(entry.key)},
      {"parent", nullptr},
      {"group", GroupLabel(entry.group, names)},
      {"group_id", ToHex(entry.group)},
      {"position", entry.position},
      {"byte_count", entry.byte_count},
      {"state", StateName(entry.state)},
      {"tiers", TierNames(entry.tier_mask)},
      {"age_ms", entry.age_ms},
      {"idle_ms", entry.idle_ms},
      {"hit_count", entry.hit_count},
      {"lease_count", entry.lease_count},
      {"child_count", entry.child_count},
      {"priority", entry.priority},
      {"expires_in_s", nullptr},
      {"is_pinned", (entry.flags & protocol::kQueriedPinned) != 0},
      {"is_persisted", (entry.flags & protocol::kQueriedPersisted) != 0},
      {"is_no_store", (entry.flags & protocol::kQueriedNoStore) != 0},
  };
  if (!entry.parent.is_zero()) document["parent"] = ToHex(entry.parent);
  if (entry.expires_in_s != 0) document["expires_in_s"] = entry.expires_in_s;
  return document;
}

}  // namespace terrace::tools
