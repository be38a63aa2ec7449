// Scripts by which shells complete `terrace`, from what --help is made of.
#pragma once

#include <string>

#include "tools/terrace/cli/arguments.h"

namespace terrace::tools {

std::string BashCompletions(const DescribedCommand& command);
std::string ZshCompletions(const DescribedCommand& command);
std::string FishCompletions(const DescribedCommand& command);

}  // namespace terrace::tools
