// The verbs of protocol_insight.h.
#pragma once

#include <memory>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::unique_ptr<Verb> MakeHitRateVerb();
std::unique_ptr<Verb> MakeExplainVerb();
VerbFamily MakeTraceVerbs();

}  // namespace terrace::tools
