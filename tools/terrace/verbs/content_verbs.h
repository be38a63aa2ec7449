// The verbs with which operators rule over what is kept, beside evict.
#pragma once

#include <memory>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

std::unique_ptr<Verb> MakePinVerb();
std::unique_ptr<Verb> MakeUnpinVerb();
std::unique_ptr<Verb> MakePinsVerb();
std::unique_ptr<Verb> MakeLogVerb();
std::unique_ptr<Verb> MakeWarmVerb();
std::unique_ptr<Verb> MakeExportVerb();
std::unique_ptr<Verb> MakeImportVerb();

}  // namespace terrace::tools
