// ReadModelFile: a model's config.json, wherever a person says that it is.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "terrace/error.h"

namespace terrace::tools {

// `path`, or config.json in it if it is a directory. Otherwise a sentence that names the file and
// what is wrong with it.
Error ReadModelFile(const std::string& path, nlohmann::json* config);

}  // namespace terrace::tools
