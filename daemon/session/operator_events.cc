#include "daemon/session/operator_events.h"

#include <span>
#include <string>
#include <utility>

#include "daemon/config/config_keys.h"
#include "daemon/log/printable.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_operator.h"

namespace terrace {
namespace {

std::optional<OperatorEvent> EventOfPin(const Request& request) {
  protocol::NamedPinRequest asked;
  const NamedPinResult& pinned = request.pinned();
  const bool is_read = request.body().Read(0, &asked);
  if (!is_read || asked.action == protocol::PinAction::kList || pinned.entries.empty()) {
    return std::nullopt;
  }
  const bool is_set = asked.action == protocol::PinAction::kSet;
  return OperatorEvent{.block_count = pinned.entries.front().block_count,
                       .byte_count = pinned.entries.front().byte_count,
                       .detail = (is_set ? "set " : "clear ") + Printable(asked.name)};
}

std::optional<OperatorEvent> EventOfTrace(const Request& request) {
  protocol::TraceRecordRequest asked;
  if (!request.body().Read(0, &asked)) return std::nullopt;
  if (asked.action == protocol::TraceAction::kStart) return OperatorEvent{.detail = "start"};
  if (asked.action == protocol::TraceAction::kStop) return OperatorEvent{.detail = "stop"};
  return std::nullopt;
}

// A check has many requests; the first one begins it.
std::optional<OperatorEvent> EventOfFsck(const Request& request) {
  protocol::FsckRequest asked;
  const bool is_read = request.body().Read(0, &asked);
  if (!is_read || (asked.flags & protocol::kFsckRepair) == 0 || asked.cursor != 0) {
    return std::nullopt;
  }
  return OperatorEvent{.detail = "repair"};
}

std::optional<OperatorEvent> EventOfDrain(const Request& request) {
  protocol::DrainRequest asked;
  if (!request.body().Read(0, &asked)) return std::nullopt;
  if (asked.action == protocol::DrainAction::kDrain) return OperatorEvent{.detail = "drain"};
  if (asked.action == protocol::DrainAction::kBypass) return OperatorEvent{.detail = "bypass"};
  if (asked.action == protocol::DrainAction::kResume) return OperatorEvent{.detail = "resume"};
  return std::nullopt;
}

}  // namespace

// Without values, which may be nobody else's to read.
std::optional<OperatorEvent> EventOfConfig(const Request& request) {
  protocol::ConfigRequest asked;
  const bool is_read = request.body().Read(0, &asked);
  if (!is_read || asked.action == protocol::ConfigAction::kGet) return std::nullopt;
  if (asked.action == protocol::ConfigAction::kQuota) return std::nullopt;
  if (asked.action == protocol::ConfigAction::kReload) return OperatorEvent{.detail = "reload"};
  std::string text(request.body().size_bytes() - sizeof(asked), '\0');
  request.body().ReadArray(sizeof(asked), std::span(text));
  return OperatorEvent{.detail = "set " + ShownKeys(text)};
}

OperatorEvent EventOf(const ErasureSummary& erased) {
  std::string detail = erased.filter;
  if (erased.key_count > 0) detail = "keys=" + std::to_string(erased.key_count);
  if (detail.empty() && erased.verb == protocol::Verb::kEvict) detail = "all";
  return {.group = erased.group.value_or(GroupId()),
          .block_count = erased.counts.block_count,
          .byte_count = erased.counts.byte_count,
          .is_whole = erased.is_whole,
          .detail = std::move(detail)};
}

std::optional<OperatorEvent> EventOf(const Request& request, RequestOutcome outcome) {
  // A check that has begun is answered later.
  const bool is_good = outcome == RequestOutcome::kWaiting ||
                       (outcome == RequestOutcome::kReply && request.reply().is_ok());
  if (!is_good) return std::nullopt;
  if (request.verb() == protocol::kVerbNamedPin) return EventOfPin(request);
  if (request.verb() == protocol::kVerbTraceRecord) return EventOfTrace(request);
  if (request.verb() == protocol::kVerbFsck) return EventOfFsck(request);
  if (request.verb() == protocol::kVerbDrain) return EventOfDrain(request);
  return std::nullopt;
}

}  // namespace terrace
