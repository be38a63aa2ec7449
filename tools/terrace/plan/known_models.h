// Configurations of models that people ask for by name, with the fields that the size of a KV cache
// follows from, as their publishers' config.json has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tools {

// JSON; empty: not known. Case, and an owner before a slash, do not matter.
std::string_view KnownModelConfig(std::string_view name);
std::vector<std::string> KnownModelNames();

}  // namespace terrace::tools
