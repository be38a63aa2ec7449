#include "daemon/session/request.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "terrace/protocol_operator.h"

namespace terrace {

using protocol::Verb;

namespace {

// Copies that left the shared tier as a whole are not counted, so that is told whatever the count.
bool IsOfAllShared(const protocol::EvictWhereRequest& asked) {
  constexpr auto kRedis = static_cast<uint8_t>(protocol::TierKind::kRedis);
  return asked.tier == kRedis && asked.idle_ms_min == 0;
}

std::string DescribeFilter(const protocol::EvictWhereRequest& asked) {
  constexpr std::array<std::string_view, protocol::kTierKindCount> kTiers = {"hbm", "dram", "nvme",
                                                                             "redis"};
  std::string text = "idle_s=" + std::to_string(asked.idle_ms_min / 1000);
  text += " tier=";
  text += asked.tier < kTiers.size() ? kTiers[asked.tier] : "all";
  if ((asked.flags & protocol::kEvictWhereShared) != 0) text += " everywhere";
  return text;
}

}  // namespace

void Request::Restart() {
  frame_.text.clear();
  is_erasure_told_ = false;
  switch (std::exchange(worker_, VerbWorker::kTable)) {
    case VerbWorker::kKeys:
      return keys_.Restart();
    case VerbWorker::kLeases:
      return leases_.Restart();
    case VerbWorker::kClient:
      return client_.Restart();
    case VerbWorker::kOperator:
      return operators_.Restart();
    case VerbWorker::kTable:
      return;
  }
}

Request::Outcome Request::Begin(Message message, const RequestContext& context) {
  Restart();
  frame_.verb = message.verb;
  frame_.id = message.request_id;
  frame_.is_pin_dropped = false;
  frame_.body = std::move(message.body);
  const VerbRow* const row = FindVerb(frame_.verb);
  if (row != nullptr) worker_ = row->worker;
  if (row != nullptr && !HasItsHead(*row)) {
    return frame_.Malformed(context, row->has_tail ? "its head" : "such a request");
  }
  if (frame_.verb == Verb::kTouch) {
    if (!frame_.Head<protocol::TouchRequest>().token.is_zero()) return Outcome::kMore;
    worker_ = VerbWorker::kKeys;
    return keys_.Begin(context, sizeof(protocol::TouchRequest));
  }
  return worker_ == VerbWorker::kKeys ? keys_.Begin(context, 0) : Outcome::kMore;
}

bool Request::HasItsHead(const VerbRow& row) const {
  if (row.verb == Verb::kHello) return true;  // ReadHello has its own words
  const size_t body_bytes = frame_.body.size_bytes();
  return row.has_tail ? body_bytes >= row.head_bytes : body_bytes == row.head_bytes;
}

bool Request::HasItsReply() const {
  const VerbRow* const row = FindVerb(frame_.verb);
  return row == nullptr || row->reply_bytes == 0 || !frame_.reply.is_ok() ||
         frame_.reply.head_bytes() == row->reply_bytes;
}

Request::Outcome Request::Step(RequestContext& context, Store& store, uint32_t* budget_blocks) {
  switch (worker_) {
    case VerbWorker::kKeys:
      return keys_.Step(context, store, budget_blocks);
    case VerbWorker::kLeases:
      return leases_.Step(context, store, budget_blocks);
    case VerbWorker::kClient:
      return client_.Step(context, store);
    case VerbWorker::kOperator:
      return operators_.Step(context, store, budget_blocks);
    case VerbWorker::kTable:
      break;
  }
  return frame_.Fail(context, Status(StatusCode::kUnsupported, "this verb is answered elsewhere"));
}

bool Request::Recycle() {
  constexpr size_t kSentenceKeptBytes = 8192;
  frame_.body.Clear();
  frame_.text.clear();
  return keys_.is_small() && leases_.is_small() && frame_.text.capacity() <= kSentenceKeptBytes;
}

std::span<const protocol::BlockSpan> Request::spans() const {
  if (worker_ == VerbWorker::kKeys) return keys_.spans();
  if (frame_.verb == Verb::kJoin) return leases_.spans();
  return {};
}

bool Request::has_pending_blocks() const {
  return std::ranges::any_of(spans(), [](const protocol::BlockSpan& span) {
    return span.state != protocol::SpanState::kReady;
  });
}

bool Request::Describe(const RequestContext& context, TracedRequest* traced) const {
  traced->verb = frame_.verb;
  return worker_ == VerbWorker::kLeases ? leases_.Describe(traced)
                                        : keys_.Describe(context, traced);
}

void Request::Describe(const RequestContext& context, SlowRequest* slow) const {
  slow->verb = frame_.verb;
  slow->request_id = frame_.id;
  slow->key_count = 0;
  slow->byte_count = 0;
  slow->group = GroupId();
  if (worker_ == VerbWorker::kKeys) {
    const protocol::KeysRequest& keys = keys_.keys();
    slow->key_count = keys.key_count;
    if (keys.group_handle == 0 || keys.group_handle > context.handles.size()) return;
    const OpenedHandle& handle = context.handles[keys.group_handle - 1];
    slow->group = handle.group;
    slow->byte_count = keys.key_count * handle.block_bytes;
  } else if (frame_.verb == Verb::kCommit) {
    protocol::CommitRequest commit;
    if (frame_.body.Read(0, &commit)) slow->key_count = commit.entry_count;
  }
}

bool Request::TakeErasure(const RequestContext& context, ErasureSummary* erased) {
  const protocol::KeysRequest& keys = keys_.keys();
  // Of all blocks, those that other hosts stored leave the shared tier, too, and are not counted.
  const bool has_all = keys.key_count == 0 && keys_.is_through();
  const bool has_evicted = frame_.verb == Verb::kEvict && (evicted().block_count > 0 || has_all) &&
                           (keys.flags & protocol::kEvictDryRun) == 0;
  if (is_erasure_told_) return false;
  if (frame_.verb == protocol::kVerbEvictWhere) return TakeFiltered(erased);
  if (!has_evicted && !operators_.has_reset()) return false;
  is_erasure_told_ = true;
  *erased = {.verb = frame_.verb,
             .key_count = keys.key_count,
             .is_whole = keys_.is_through() || operators_.is_through(),
             .counts = evicted()};
  const uint32_t handle = has_evicted ? keys.group_handle : operators_.group_handle();
  if (handle != 0 && handle <= context.handles.size()) {
    erased->group = context.handles[handle - 1].group;
  }
  return true;
}

bool Request::TakeFiltered(ErasureSummary* erased) {
  protocol::EvictWhereRequest asked;
  if (!frame_.body.Read(0, &asked)) return false;
  if ((asked.flags & protocol::kEvictWhereDryRun) != 0) return false;
  const bool has_forgotten = operators_.has_filtered() && IsOfAllShared(asked);
  if (evicted().block_count == 0 && !has_forgotten) return false;
  is_erasure_told_ = true;
  *erased = {.verb = frame_.verb,
             .is_whole = operators_.is_through(),
             .counts = evicted(),
             .filter = DescribeFilter(asked)};
  if (!asked.group.is_zero()) erased->group = asked.group;
  return true;
}

}  // namespace terrace
