// The verbs of protocol_introspection.h.
#pragma once

#include <memory>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::unique_ptr<Verb> MakeHitRateVerb();
std::unique_ptr<Verb> MakeExplainVerb();
VerbFamily MakeTraceVerbs();

}  // namespace terrace::tools
