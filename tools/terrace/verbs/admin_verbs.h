// The verbs that rule over a daemon: those of protocol_admin.h.
#pragma once

#include <memory>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::unique_ptr<Verb> MakeDrainVerb();
std::unique_ptr<Verb> MakeQuotaVerb();
VerbFamily MakeConfigVerbs();

}  // namespace terrace::tools
