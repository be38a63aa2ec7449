// Whether a daemon that answers has turned this client away: waiting longer would not help, and the
// client has its words.
#pragma once

#include <string_view>

#include "terrace/status.h"

namespace terrace::tools {

// WaitConnected answered `status`, and the client says `words`. Who connects too fast is told to,
// though it goes on trying.
inline bool IsRefused(Status status, std::string_view words) {
  return status.code() != StatusCode::kBusy || words.find(" refused this client: ") != words.npos;
}

}  // namespace terrace::tools
