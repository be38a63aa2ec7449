// Request: one client message from decoding to its reply. A request about many keys is worked off
// in steps of at most kBlocksPerTurnMax blocks, so that a million-token prompt never holds the
// store thread; between steps it is this object that remembers how far it got. Who works it off is
// written in the table of verbs (verb_table.h).
//
//   Begin (decode, check) ─► Step … Step ─► reply() ─► pages
//                                       └─► waiting: the answer comes later, as news
//
// THREADING: the store thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/log/slow_log.h"
#include "daemon/log/trace_recorder.h"
#include "daemon/session/client_requests.h"
#include "daemon/session/key_requests.h"
#include "daemon/session/lease_requests.h"
#include "daemon/session/operator_requests.h"
#include "daemon/session/request_frame.h"
#include "daemon/session/verb_table.h"
#include "daemon/store/store.h"

namespace terrace {

// Blocks that an Evict, EvictWhere or Reset has erased, as an audit keeps it.
struct ErasureSummary {
  protocol::Verb verb = protocol::Verb::kEvict;
  std::optional<GroupId> group;  // none: every group of the domain
  uint32_t key_count = 0;        // 0: every block
  bool is_whole = false;         // false: it ended before it was through
  protocol::EvictReply counts;   // but of a Reset
  std::string filter;            // of an EvictWhere: "idle_s=7200 tier=nvme"
};

class Request {
 public:
  using Outcome = RequestOutcome;

  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Takes the message over; it may borrow from the read buffer until Own().
  Outcome Begin(Message message, const RequestContext& context);
  // Goes on, spending blocks of *budget_blocks. REQUIRES: the last outcome was kMore.
  Outcome Step(RequestContext& context, Store& store, uint32_t* budget_blocks);
  // Answers without asking the store: a refusal, or kOk and a document.
  void Answer(const RequestContext& context, Status status, std::string text) {
    frame_.Answer(context, status, std::move(text));
  }
  // Likewise: nothing is there, or there is no room for any key; of more keys than a turn fills in
  // `no_room` says so. REQUIRES: a request of VerbRow::takes_new that has not been stepped.
  Outcome AnswerMiss(const RequestContext& context, std::string_view no_room) {
    return keys_.AnswerMiss(context, no_room);
  }
  // It goes on without the pin that its hints ask for. REQUIRES: it has not been stepped.
  void DropPin() { frame_.is_pin_dropped = true; }

  // Forgets the message. False if a long one has left it more memory than is worth keeping.
  bool Recycle();
  // Copies what is still borrowed: the read buffer is about to be used again.
  void Own() { frame_.body.Own(); }

  protocol::Verb verb() const { return frame_.verb; }
  uint64_t id() const { return frame_.id; }
  const MessageBody& body() const { return frame_.body; }
  template <typename T>
  T Head() const {
    return frame_.Head<T>();
  }
  // Memory of the answer as it grows.
  size_t result_bytes() const { return keys_.result_bytes() + leases_.result_bytes(); }
  // True if completions follow the reply: something is coming, or a writer is followed.
  bool has_pending_blocks() const;
  std::span<const protocol::BlockSpan> spans() const;  // of its answer
  Reply& reply() { return frame_.reply; }
  const Reply& reply() const { return frame_.reply; }
  // The answer begins with what the table of verbs says.
  bool HasItsReply() const;
  // What a recording says of it once it is answered. False for other verbs, and what failed.
  bool Describe(const RequestContext& context, TracedRequest* traced) const;
  // What it asked for, if it should be slow. REQUIRES: it has begun.
  void Describe(const RequestContext& context, SlowRequest* slow) const;
  // True, once, if the request has erased something, durably or not yet; all of it or, if it ends
  // here, a part.
  bool TakeErasure(const RequestContext& context, ErasureSummary* erased);
  // Counts of an Evict or EvictWhere.
  const protocol::EvictReply& evicted() const {
    return worker_ == VerbWorker::kOperator ? operators_.evicted() : keys_.evicted();
  }
  // Of a NamedPin, once it is answered.
  const NamedPinResult& pinned() const { return operators_.pinned(); }

 private:
  // Whoever worked the last message off forgets it.
  void Restart();
  bool TakeFiltered(ErasureSummary* erased);
  // The body is as long as the table of verbs says, as far as it can.
  bool HasItsHead(const VerbRow& row) const;

  RequestFrame frame_;
  VerbWorker worker_ = VerbWorker::kTable;  // of this message
  KeyRequests keys_{frame_};
  LeaseRequests leases_{frame_};
  ClientRequests client_{frame_};
  OperatorRequests operators_{frame_};
  bool is_erasure_told_ = false;
};

}  // namespace terrace
