// What is asked when something is slow or broken: `terrace slow`, `terrace debug dump`, and the
// answers of other verbs that a dump holds, too.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "terrace/protocol_operator.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/content/operator_requests.h"

namespace terrace::tools {

std::unique_ptr<Verb> MakeSlowVerb();
VerbFamily MakeDebugVerbs();

// Discarded with a sentence in `*why`. Of kSlowRequests with `group_name` beside a known `group`.
nlohmann::json AskDiagnose(AdminLink& link, protocol::DiagnoseRequest request, std::string* why);
// The lines of the catalog's audit, likewise.
nlohmann::json AskAudit(AdminLink& link, std::string* why);
nlohmann::json ToJson(const LogAnswer& answer, const GroupNames& names);

}  // namespace terrace::tools
