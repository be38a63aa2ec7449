// Why a block is not there, in words.
#pragma once

#include <string>

#include "terrace/protocol_introspection.h"

namespace terrace::tools {

// Why one left.
std::string CauseText(protocol::MissCause cause);

}  // namespace terrace::tools
