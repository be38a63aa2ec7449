// The verbs that explain: those of protocol_introspection.h, and those that need no daemon.
#pragma once

#include <memory>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::unique_ptr<Verb> MakeHitRateVerb();
std::unique_ptr<Verb> MakeExplainVerb();
std::unique_ptr<Verb> MakeSpacesVerb();
std::unique_ptr<Verb> MakeShowVerb();
std::unique_ptr<Verb> MakePlanVerb();
VerbFamily MakeTraceVerbs();

}  // namespace terrace::tools
