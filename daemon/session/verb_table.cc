#include "daemon/session/verb_table.h"

#include <iterator>

#include "src/verb_names.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_join.h"
#include "terrace/protocol_operator.h"
#include "terrace/protocol_retention.h"

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
bool Any(const MessageBody&) { return true; }
bool DecidesByEvict(const MessageBody& body) {
  return (HeadOf<protocol::KeysRequest>(body).flags & protocol::kEvictDryRun) == 0;
}
// Of keys, which come behind no token, by a hint that is of the blocks.
bool DecidesByTouch(const MessageBody& body) {
  protocol::KeysRequest keys;
  if (!HeadOf<protocol::TouchRequest>(body).token.is_zero() ||
      !body.Read(sizeof(protocol::TouchRequest), &keys)) {
    return false;
  }
  const protocol::Hints& hints = keys.hints;
  return hints.ttl_s != 0 || hints.priority != protocol::kPriorityUnset ||
         (hints.flags & (protocol::kHintPin | protocol::kHintNoStore)) != 0;
}
// Where ttl_s is a time of the priority the blocks stay behind it.
bool HavePinForGood(const protocol::Hints& hints) {
  const bool has_end = hints.ttl_s != 0 && (hints.flags & protocol::kHintTtlOfPriority) == 0;
  return (hints.flags & protocol::kHintPin) != 0 && !has_end;
}
bool PinsByReserve(const MessageBody& body) {
  return HavePinForGood(HeadOf<protocol::KeysRequest>(body).hints);
}
bool PinsByCommit(const MessageBody& body) {
  return HavePinForGood(HeadOf<protocol::CommitRequest>(body).hints);
}
bool PinsByTouch(const MessageBody& body) {
  protocol::KeysRequest keys;
  return body.Read(sizeof(protocol::TouchRequest), &keys) && HavePinForGood(keys.hints);
}
bool DecidesByNamedPin(const MessageBody& body) {
  return HeadOf<protocol::NamedPinRequest>(body).action != protocol::PinAction::kList;
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
bool RulesByDiagnose(const MessageBody& body) {
  return HeadOf<protocol::DiagnoseRequest>(body).action != protocol::DiagnoseAction::kSlowRequests;
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
     .head_bytes = kHead<protocol::HelloRequest>,
     .reply_bytes = kHead<protocol::HelloReply>},
    {.verb = Verb::kOpen,
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::OpenRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::OpenReply>},
    {.verb = Verb::kMatch,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::MatchReply>,
     .key_flags = kFlat,
     .takes_new = true},
    {.verb = Verb::kAcquire,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::AcquireReply>,
     .key_flags = kAcquireFlags,
     .has_news = true,
     .takes_new = true,
     .timed_as = TimedVerb::kAcquire},
    {.verb = Verb::kPrefetch,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::MatchReply>,
     .key_flags = kFlat,
     .has_news = true,
     .takes_new = true},
    {.verb = Verb::kJoin,
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::JoinRequest>,
     .has_tail = true,
     .has_news = true},
    {.verb = Verb::kRelease,
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::ReleaseRequest>},
    {.verb = Verb::kCancel,
     .worker = VerbWorker::kLeases,
     .head_bytes = kHead<protocol::CancelRequest>},
    {.verb = Verb::kTouch,
     .worker = VerbWorker::kLeases,
     .decides = DecidesByTouch,
     .pins = PinsByTouch,
     .head_bytes = kHead<protocol::TouchRequest>,
     .has_tail = true,
     .key_flags = kFlat},
    {.verb = Verb::kReserve,
     .worker = VerbWorker::kKeys,
     .stores = true,
     .pins = PinsByReserve,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::ReserveReply>,
     .key_flags = kFlat | protocol::kReserveHasEvents,
     .takes_new = true,
     .timed_as = TimedVerb::kReserve},
    {.verb = Verb::kCommit,
     .worker = VerbWorker::kLeases,
     .stores = true,
     .pins = PinsByCommit,
     .head_bytes = kHead<protocol::CommitRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::CommitReply>,
     .timed_as = TimedVerb::kCommit},
    {.verb = Verb::kAbort,
     .worker = VerbWorker::kLeases,
     .stores = true,
     .head_bytes = kHead<protocol::AbortRequest>,
     .has_tail = true},
    {.verb = Verb::kQuery,
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .key_flags = kFlat},
    {.verb = Verb::kWait,
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .key_flags = kFlat,
     .has_news = true},
    {.verb = Verb::kEvict,
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kKeys,
     .rules = RulesByEvict,
     .is_open_unless_named = true,
     .decides = DecidesByEvict,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::EvictReply>,
     .key_flags = kEvictFlags},
    {.verb = Verb::kPin,
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kKeys,
     .rules = RulesByPin,
     .is_open_unless_named = true,
     .decides = Any,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::PinReply>,
     .key_flags = kFlat | protocol::kPinClear},
    {.verb = Verb::kReset,
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .decides = Any,
     .head_bytes = kHead<protocol::ResetRequest>},
    // Nobody reads what a Stats brings. Its document is as long as there are sessions: one is a
    // turn's worth.
    {.verb = Verb::kStats,
     .role = VerbRole::kOperator,
     .has_tail = true,
     .message_blocks = protocol::kBlocksPerTurnMax},
    {.verb = Verb::kList,
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::ListRequest>,
     .reply_bytes = kHead<protocol::ListReply>},
    {.verb = Verb::kUnmapped,
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::UnmappedRequest>},
    {.verb = protocol::kVerbHitRate,
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::HitRateRequest>,
     .reply_bytes = kHead<protocol::HitRateReply>},
    {.verb = protocol::kVerbExplain,
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::ExplainRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::ExplainReply>},
    {.verb = protocol::kVerbTraceRecord,
     .role = VerbRole::kAdmin,
     .rules = RulesByTraceRecord,
     .head_bytes = kHead<protocol::TraceRecordRequest>,
     .reply_bytes = kHead<protocol::TraceRecordReply>},
    {.verb = protocol::kVerbFsck,
     .role = VerbRole::kAdmin,
     .rules = RulesByFsck,
     .head_bytes = kHead<protocol::FsckRequest>},
    // Its slabs are there to be written.
    {.verb = protocol::kVerbDeviceAttach,
     .stores = true,
     .head_bytes = kHead<protocol::DeviceAttachRequest>,
     .reply_bytes = kHead<protocol::DeviceAttachReply>},
    {.verb = protocol::kVerbOrderDone,
     .worker = VerbWorker::kClient,
     .stores = true,
     .head_bytes = kHead<protocol::OrderDoneRequest>,
     .has_tail = true},
    {.verb = protocol::kVerbPinTurn,
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::PinTurnRequest>},
    {.verb = protocol::kVerbDeviceReport,
     .worker = VerbWorker::kClient,
     .head_bytes = kHead<protocol::DeviceReport>},
    {.verb = protocol::kVerbDrain,
     .role = VerbRole::kAdmin,
     .rules = RulesByDrain,
     .head_bytes = kHead<protocol::DrainRequest>,
     .reply_bytes = kHead<protocol::DrainReply>},
    {.verb = protocol::kVerbConfig,
     .role = VerbRole::kAdmin,
     .head_bytes = kHead<protocol::ConfigRequest>,
     .has_tail = true,
     .message_blocks = protocol::kBlocksPerTurnMax,
     .has_news = true},
    {.verb = protocol::kVerbEvictWhere,
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kOperator,
     .rules = RulesByEvictWhere,
     .is_open_unless_named = true,
     .decides = RulesByEvictWhere,
     .head_bytes = kHead<protocol::EvictWhereRequest>,
     .reply_bytes = kHead<protocol::EvictReply>},
    {.verb = protocol::kVerbNamedPin,
     .role = VerbRole::kAdmin,
     .worker = VerbWorker::kOperator,
     .rules = RulesByNamedPin,
     .is_open_unless_named = true,
     .decides = DecidesByNamedPin,
     .head_bytes = kHead<protocol::NamedPinRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::NamedPinReply>},
    {.verb = protocol::kVerbOperatorLog,
     .role = VerbRole::kOperator,
     .head_bytes = kHead<protocol::OperatorLogRequest>},
    {.verb = protocol::kVerbDiagnose,
     .role = VerbRole::kAdmin,
     .rules = RulesByDiagnose,
     .head_bytes = kHead<protocol::DiagnoseRequest>,
     .message_blocks = protocol::kBlocksPerTurnMax},
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

bool IsForWriters(const VerbRow& row, const MessageBody& body) {
  return row.stores || (row.decides != nullptr && row.decides(body));
}

bool PinsForGood(const VerbRow& row, const MessageBody& body) {
  return row.pins != nullptr && row.pins(body);
}

std::string_view VerbName(Verb verb) { return VerbNameOr(verb, "unknown verb"); }

}  // namespace terrace
