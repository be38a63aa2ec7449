#include "daemon/session/verb_table.h"

#include <array>
#include <iterator>

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
     .key_flags = kFlat},
    {.verb = Verb::kAcquire,
     .name = "Acquire",
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::AcquireReply>,
     .key_flags = kAcquireFlags,
     .has_news = true,
     .timed_as = TimedVerb::kAcquire},
    {.verb = Verb::kPrefetch,
     .name = "Prefetch",
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::MatchReply>,
     .key_flags = kFlat,
     .has_news = true},
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
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kKeys,
     .head_bytes = kKeysHead,
     .has_tail = true,
     .reply_bytes = kHead<protocol::EvictReply>,
     .key_flags = kEvictFlags},
    {.verb = Verb::kPin,
     .name = "Pin",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kKeys,
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
     .role = VerbRole::kOperator,
     .head_bytes = kHead<protocol::TraceRecordRequest>,
     .reply_bytes = kHead<protocol::TraceRecordReply>},
    {.verb = protocol::kVerbFsck,
     .name = "Fsck",
     .role = VerbRole::kOperator,
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
    {.verb = protocol::kVerbEvictWhere,
     .name = "EvictWhere",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::EvictWhereRequest>,
     .reply_bytes = kHead<protocol::EvictReply>},
    {.verb = protocol::kVerbNamedPin,
     .name = "NamedPin",
     .role = VerbRole::kOperator,
     .worker = VerbWorker::kOperator,
     .head_bytes = kHead<protocol::NamedPinRequest>,
     .has_tail = true,
     .reply_bytes = kHead<protocol::NamedPinReply>},
    {.verb = protocol::kVerbOperatorLog,
     .name = "OperatorLog",
     .role = VerbRole::kOperator,
     .head_bytes = kHead<protocol::OperatorLogRequest>},
};

constexpr bool AreInOrder() {
  for (size_t i = 1; i < std::size(kRows); ++i) {
    if (kRows[i - 1].verb >= kRows[i].verb) return false;
  }
  return kRows[0].verb == Verb::kHello && kRows[std::size(kRows) - 1].verb == protocol::kVerbLast;
}
static_assert(AreInOrder(), "numbers rise from Hello's to the last; some are not given yet");

// Where each number's row is; std::size(kRows): it has none.
constexpr auto kPlaces = [] {
  std::array<uint8_t, static_cast<size_t>(protocol::kVerbLast) + 1> places{};
  places.fill(static_cast<uint8_t>(std::size(kRows)));
  for (size_t i = 0; i < std::size(kRows); ++i) {
    places[static_cast<size_t>(kRows[i].verb)] = static_cast<uint8_t>(i);
  }
  return places;
}();

}  // namespace

std::span<const VerbRow> VerbTable() { return kRows; }

const VerbRow* FindVerb(Verb verb) {
  const auto number = static_cast<size_t>(verb);
  const size_t place = number < kPlaces.size() ? kPlaces[number] : std::size(kRows);
  return place < std::size(kRows) ? &kRows[place] : nullptr;
}

std::string_view VerbName(Verb verb) {
  const VerbRow* const row = FindVerb(verb);
  return row != nullptr ? row->name : "unknown verb";
}

}  // namespace terrace
