#include "tools/terrace/trace/trace.h"

#include <nlohmann/json.hpp>

namespace terrace::tools {

protocol::EndReason EndReasonOf(const nlohmann::json& stop) {
  if (stop == "tool_use") return protocol::EndReason::kToolCall;
  if (stop == "end_turn") return protocol::EndReason::kEndOfTurn;
  if (stop == "length") return protocol::EndReason::kLength;
  if (stop == "aborted") return protocol::EndReason::kAborted;
  return protocol::EndReason::kUnknown;
}

}  // namespace terrace::tools
