// Requests over an AdminLink that several verbs make. Each tells the person on stderr what went
// wrong, if anything does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_introspection.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/space_text.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::optional<StatsView> FetchStats(AdminLink& link);
// Why clients of the domain find and store nothing, or only find; empty: they are served.
std::string WhyUnserved(const StatsView& stats);

// Why the last request was refused; of a daemon that is older than the verb that.
std::string WhyRefused(const AdminLink& link, std::string_view verb_name);
// Of a verb that answers a JSON object. Otherwise discarded, and a sentence in `*why`.
nlohmann::json AskDocument(AdminLink& link, protocol::Verb verb, std::span<const std::byte> body,
                           std::string* why);
// The same of Config, with what follows its head.
nlohmann::json AskConfig(AdminLink& link, protocol::ConfigAction action, std::string_view text,
                         std::string* why);
// Once; none after telling the person why.
std::optional<nlohmann::json> AskConfig(const DaemonAddress& address, protocol::ConfigAction action,
                                        std::string_view text);
// Sets all of "KEY=VALUE", or none.
std::optional<nlohmann::json> AskConfigSet(const DaemonAddress& address,
                                           const std::vector<std::string>& changes);

// Blocks of all groups, parents before children, page by page; `root` not zero: of its subtree
// alone. Until there are no more, or `take` answers false.
using ListTaker = std::function<bool(std::span<const protocol::ListEntry>)>;
struct ListPages {
  BlockKey root;
  uint32_t page_entries = protocol::kBlocksPerTurnMax;
};
bool ListBlocks(AdminLink& link, const ListPages& pages, const ListTaker& take);

struct Explained {
  protocol::ExplainReply reply;
  std::vector<protocol::ExplainNear> nears;
  // With protocol::kExplainMembers; absent of a daemon that does not tell them.
  std::optional<std::vector<SpaceMember>> members;
};
struct ExplainQuery {
  GroupId group;
  std::span<const BlockKey> keys;  // at least one
  uint32_t flags = 0;
};
std::optional<Explained> AskExplain(AdminLink& link, const ExplainQuery& query);

}  // namespace terrace::tools
