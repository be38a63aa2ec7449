#include "daemon/session/verb_table.h"

#include <iterator>

#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_join.h"
#include "terrace/protocol_operator.h"

namespace terrace {
namespace {

using protocol::Verb;

constexpr uint32_t kFlat = protocol::kKeysFlat;
constexpr uint32_t kAcquireFlags =
    kFlat | protocol::kAcquireFollow | protocol::kAcquireByParts | protocol::kAcquireDevice;
constexpr uint32_t kEvictFlags = kFlat | protocol::kEvictDryRun | protocol::kEvictSubtree;

template <typename Head>
constexpr size_t kHead = sizeof(Head);
constexpr size_t kKeysHead = sizeof(protocol::KeysRequest);

template <typename Head>
Head HeadOf(const MessageBody& body) {
  Head head;
  (void)body.Read(0, &head);
  return head;
}

// Of all blocks of a group, or of the domain.
bool RulesByEvict(const MessageBody& body) {
  const auto keys = HeadOf<protocol::KeysRequest>(body);
  return keys.key_count == 0 && (keys.flags & protocol::kEvictDryRun) == 0;
}
// For good.
bool RulesByPin(const MessageBody& body) {
  const auto keys = HeadOf<protocol::KeysRequest>(body);
  return keys.hints.ttl_s == 0 && (keys.flags & protocol::kPinClear) == 0;
}
bool RulesByEvictWhere(const MessageBody& body) {
  return (HeadOf<protocol::EvictWhereRequest>(body).flags & protocol::kEvictWhereDryRun) == 0;
}
// For good, likewise.
bool RulesByNamedPin(const MessageBody& body) {
  const auto pin = HeadOf<protocol::NamedPinRequest>(body);
  return pin.action == protocol::PinAction::kSet && pin.ttl_s == 0;
}
bool RulesByTraceRecord(const MessageBody& body) {
  return HeadOf<protocol::TraceRecordRequest>(body).action != protocol::TraceAction::kStatus;
}
bool RulesByFsck(const MessageBody& body) {
  return (HeadOf<protocol::FsckRequest>(body).flags & protocol::kFsckRepair) != 0;
}
bool RulesByDrain(const MessageBody& body) {
  return HeadOf<protocol::DrainRequest>(body).action != protocol::DrainAction::kStatus;
}

constexpr VerbRow kRows[] = {
    {.verb = Verb::kHello,
     .name = "Hello",
     .head_bytes = kHead<protocol::HelloRequest>,
     .reply_bytes = kHead<protocol::HelloReply>},
    {.verb = Verb::kOpen,
     .name = "Open",
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::OpenRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::OpenReply>},
    {.verb = Verb::kMatch,
     .name = "Match",
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::MatchReply>,
     .key_flags = kFlat,
     .takes_new = true},
    {.verb = Verb::kAcquire,
     .name = "Acquire",
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::AcquireReply>,
     .key_flags = kAcquireFlags,
     .has_news = true,
     .takes_new = true,
     .timed_as = TimedVerb::kAcquire},
    {.verb = Verb::kPrefetch,
     .name = "Prefetch",
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::MatchReply>,
     .key_flags = kFlat,
     .has_news = true,
     .takes_new = true},
    {.verb = Verb::kJoin,
     .name = "Join",
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::JoinRequest>,
     .has_tail = true,
     .has_news = true},
    {.verb = Verb::kRelease,
     .name = "Release",
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::ReleaseRequest>},
    {.verb = Verb::kCancel,
     .name = "Cancel",
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::CancelRequest>},
    {.verb = Verb::kTouch,
     .name = "Touch",
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::TouchRequest>,
     .has_tail = true,
     .key_flags = kFlat},
    {.verb = Verb::kReserve,
     .name = "Reserve",
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::ReserveReply>,
     .key_flags = kFlat | protocol::kReserveHasEvents,
     .takes_new = true,
     .timed_as = TimedVerb::kReserve},
    {.verb = Verb::kCommit,
     .name = "Commit",
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::CommitRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::CommitReply>,
     .timed_as = TimedVerb::kCommit},
    {.verb = Verb::kAbort,
     .name = "Abort",
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::AbortRequest>,
     .has_tail = true},
    {.verb = Verb::kQuery,
     .name = "Query",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .key_flags = kFlat},
    {.verb = Verb::kWait,
     .name = "Wait",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .key_flags = kFlat,
     .has_news = true},
    {.verb = Verb::kEvict,
     .name = "Evict",
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kKeys,
     .rules = RulesByEvict,
     .is_open_unless_named = true,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::EvictReply>,
     .key_flags = kEvictFlags},
    {.verb = Verb::kPin,
     .name = "Pin",
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kKeys,
     .rules = RulesByPin,
     .is_open_unless_named = true,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::PinReply>,
     .key_flags = kFlat | protocol::kPinClear},
    {.verb = Verb::kReset,
     .name = "Reset",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::ResetRequest>},
    // Nobody reads what a Stats brings. Its document is as long as there are sessions: one is a
    // turn's worth.
    {.verb = Verb::kStats,
     .name = "Stats",
     .role = VerbRole::kOperator,
     .has_tail = true,
     .message_blocks = protocol::kBlocksPerTurnMax},
    {.verb = Verb::kList,
     .name = "List",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::ListRequest>,
     .reply_bytes = kHead<protocol::ListReply>},
    {.verb = Verb::kUnmapped,
     .name = "Unmapped",
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::UnmappedRequest>},
    {.verb = protocol::kVerbHitRate,
     .name = "HitRate",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::HitRateRequest>,
     .reply_bytes = kHead<protocol::HitRateReply>},
    {.verb = protocol::kVerbExplain,
     .name = "Explain",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::ExplainRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::ExplainReply>},
    {.verb = protocol::kVerbTraceRecord,
     .name = "TraceRecord",
     .role = VerbRole::kAdmin,
     .rules = RulesByTraceRecord,
     .head_bytes = kHead<protocol::TraceRecordRequest>,
     .reply_bytes = kHead<protocol::TraceRecordReply>},
    {.verb = protocol::kVerbFsck,
     .name = "Fsck",
     .role = VerbRole::kAdmin,
     .rules = RulesByFsck,
     .head_bytes = kHead<protocol::FsckRequest>},
    {.verb = protocol::kVerbDeviceAttach,
     .name = "DeviceAttach",
     .head_bytes = kHead<protocol::DeviceAttachRequest>,
     .reply_bytes = kHead<protocol::DeviceAttachReply>},
    {.verb = protocol::kVerbOrderDone,
     .name = "OrderDone",
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::OrderDoneRequest>,
     .has_tail = true},
    {.verb = protocol::kVerbPinTurn,
     .name = "PinTurn",
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::PinTurnRequest>},
    {.verb = protocol::kVerbDeviceReport,
     .name = "DeviceReport",
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::DeviceReport>},
    {.verb = protocol::kVerbDrain,
     .name = "Drain",
     .role = VerbRole::kAdmin,
     .rules = RulesByDrain,
     .head_bytes = kHead<protocol::DrainRequest>,
     .reply_bytes = kHead<protocol::DrainReply>},
    {.verb = protocol::kVerbConfig,
     .name = "Config",
     .role = VerbRole::kAdmin,
     .head_bytes = kHead<protocol::ConfigRequest>,
     .has_tail = true,
     .message_blocks = protocol::kBlocksPerTurnMax,
     .has_news = true},
    {.verb = protocol::kVerbEvictWhere,
     .name = "EvictWhere",
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kOperator,
     .rules = RulesByEvictWhere,
     .is_open_unless_named = true,
     .head_bytes = kHead<protocol::EvictWhereRequest>,
     .reply_bytes = kHead<protocol::EvictReply>},
    {.verb = protocol::kVerbNamedPin,
     .name = "NamedPin",
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kOperator,
     .rules = RulesByNamedPin,
     .is_open_unless_named = true,
     .head_bytes = kHead<protocol::NamedPinRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::NamedPinReply>},
    {.verb = protocol::kVerbOperatorLog,
     .name = "OperatorLog",
     .role = VerbRole::kOperator,
     .head_bytes = kHead<protocol::OperatorLogRequest>},
};

static_assert(std::size(kRows) == static_cast<size_t>(protocol::kVerbLast));

constexpr bool AreInOrder() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<size_t>(kRows[i].verb) != i + 1) return false;
  }
  return true;
}
static_assert(AreInOrder(), "a verb is found by its number");

}  // namespace

std::span<const VerbRow> VerbTable() { return kRows; }

const VerbRow* FindVerb(Verb verb) {
  const auto index = static_cast<size_t>(verb) - 1;
  return index < std::size(kRows) ? &kRows[index] : nullptr;
}

bool IsForAdmins(const VerbRow& row, const MessageBody& body) {
  return row.role == VerbRole::kAdmin && (row.rules == nullptr || row.rules(body));
}

std::string_view VerbName(Verb verb) {
  const VerbRow* const row = FindVerb(verb);
  return row != nullptr ? row->name : "unknown verb";
}

}  // namespace terrace
