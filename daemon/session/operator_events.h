// What of a request the operator log keeps.
#pragma once

#include <optional>

#include "daemon/log/operator_log.h"
#include "daemon/session/request.h"

namespace terrace {

OperatorEvent EventOf(const ErasureSummary& erased);
// Of a Config, whose outcome is known when it is answered: none if it changes nothing.
std::optional<OperatorEvent> EventOfConfig(const Request& request);
// Of a request other than these that has come to this outcome: none if it has changed nothing.
std::optional<OperatorEvent> EventOf(const Request& request, RequestOutcome outcome);

}  // namespace terrace
