// What of a request the operator log keeps.
#pragma once

#include <optional>

#include "daemon/log/operator_log.h"
#include "daemon/session/request.h"

namespace terrace {

OperatorEvent EventOf(const ErasureSummary& erased);
// Of a request other than an erasure that has come to this outcome: none if it has changed nothing.
std::optional<OperatorEvent> EventOf(const Request& request, RequestOutcome outcome);

}  // namespace terrace
