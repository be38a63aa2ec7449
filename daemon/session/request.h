// Request: one client message from decoding to its reply. A request about many keys is worked off
// in steps of at most kBlocksPerTurnMax blocks, so that a million-token prompt never holds the
// store thread; between steps it is this object that remembers how far it got.
//
//   Begin (decode, check) ─► Step … Step ─► reply() ─► pages
//                                       └─► waiting: the answer comes later, as news
//
// A body that does not have the size its own counts claim is malformed: the connection cannot be
// believed any further. A count, handle or flag out of range is a bad argument: the session lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/log/trace_recorder.h"
#include "daemon/session/frame_codec.h"
#include "daemon/store/store.h"
#include "terrace/protocol.h"

namespace terrace {

// A SpaceGroup as one session opened it; group_handle h is entry h − 1.
struct OpenedHandle {
  uint32_t group_index = 0;
  uint64_t self_mask = 0;
  uint32_t member_count = 0;
  GroupId group;
  uint32_t block_tokens = 0;
  bool is_inexact = false;  // a member's Space names a lossy codec, or is of chunks
};

// Blocks that an Evict or a Reset has erased, as an audit keeps it.
struct ErasureSummary {
  protocol::Verb verb = protocol::Verb::kEvict;
  std::optional<GroupId> group;  // none: every group of the domain
  uint32_t key_count = 0;        // 0: every block
  bool is_whole = false;         // false: it ended before it was through
  protocol::EvictReply counts;   // of an Evict
};

// What a request knows of its session.
struct RequestContext {
  SessionId session = 0;
  uint64_t boot_id = 0;
  std::vector<OpenedHandle> handles;  // grows with Open; bounded by the domain's groups_max
};

class Request {
 public:
  enum class Outcome {
    kMore,       // call Step, again in a later turn if the budget is spent
    kReply,      // reply() is ready to be cut into pages
    kSeeking,    // something is awaited elsewhere: call Step when OnSeekDone has come
    kWaiting,    // a Wait that OnWaitDone will end
    kErasing,    // an Evict or Reset that has done its work; OnWaitDone says when it is durable
    kMalformed,  // reply() says why; close the connection after it
  };

  // Takes the message over; it may borrow from the read buffer until Own().
  Outcome Begin(Message message, const RequestContext& context);
  // Goes on, spending blocks of *budget_blocks. REQUIRES: the last outcome was kMore.
  Outcome Step(RequestContext& context, Store& store, uint32_t* budget_blocks);
  // Answers without asking the store: a refusal, or kOk and a document.
  void Answer(const RequestContext& context, Status status, std::string text);

  // Forgets the message. False if a long one has left it more memory than is worth keeping.
  bool Recycle();
  // Copies what is still borrowed: the read buffer is about to be used again.
  void Own() { body_.Own(); }

  protocol::Verb verb() const { return verb_; }
  uint64_t id() const { return id_; }
  const MessageBody& body() const { return body_; }
  // Of the answer as it grows.
  size_t result_bytes() const;
  // True if completions follow the reply: something is coming, or a writer is followed.
  bool has_pending_blocks() const;
  Reply& reply() { return reply_; }
  // What a recording says of it once it is answered. False for other verbs, and what failed.
  bool Describe(const RequestContext& context, TracedRequest* traced) const;
  // True, once, if the request has erased something, durably or not yet; all of it or, if it ends
  // here, a part.
  bool TakeErasure(const RequestContext& context, ErasureSummary* erased);
  // What an Evict has counted.
  const protocol::EvictReply& evicted() const { return evicted_; }

 private:
  // request.cc: decoding and answering.
  Outcome BeginKeys(const RequestContext& context, size_t offset_bytes);
  Status CheckKeys(const RequestContext& context);
  Status ResolveGroup(const RequestContext& context);
  Status CheckReplySize();
  Status Invalid(std::string sentence);
  Outcome Malformed(const RequestContext& context, const std::string& what);
  Outcome Fail(const RequestContext& context, Status status);
  Outcome Finish(const RequestContext& context);
  void AddResults();
  void ResetResults();

  // request_keys.cc: the key verbs, step by step.
  Outcome StepKeys(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  uint32_t KeyCost(const RequestContext& context, Store& store) const;
  void Passed(uint32_t key_count);  // keys of the last NextQuery
  KeysQuery NextQuery(const RequestContext& context, uint32_t key_count);
  Result<Progress> CallKeys(Store& store, const KeysQuery& query);
  // The operation under way; `make` makes it at the first step.
  template <typename Operation, typename Make>
  Operation& OperationOf(Make make) {
    if (Operation* const known = std::get_if<Operation>(&operation_)) return *known;
    return operation_.template emplace<Operation>(make());
  }
  Status CallQuery(Store& store, const KeysQuery& query);
  Status CallPin(Store& store, const KeysQuery& query);
  Outcome FinishErasing(const RequestContext& context, Store& store);

  // request_verbs.cc: the other verbs. kInvalid with why_ set refuses the argument; *is_malformed
  // says that the body's size is wrong.
  Outcome StepOther(RequestContext& context, Store& store, uint32_t* budget_blocks);
  Status Act(RequestContext& context, Store& store, bool* is_malformed);
  Status Open(RequestContext& context, Store& store, bool* is_malformed);
  Status ReadGroup(SpaceGroupSpec* group, uint64_t* self_mask, bool* is_malformed);
  Status OrderDone(const RequestContext& context, Store& store, bool* is_malformed);
  Status PinTurn(const RequestContext& context, Store& store, bool* is_malformed);
  Outcome StepList(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  Status BeginJoin(const RequestContext& context, Store& store, bool* is_malformed);
  Outcome StepJoin(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  Outcome StepCommit(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  bool ReadCommitStep(const protocol::CommitRequest& commit, uint32_t entry_count);
  void PassCommitted(uint32_t entry_count);
  Outcome StepAbort(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  Outcome StepReset(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  // request_insight.cc: the verbs of protocol_insight.h.
  Outcome StepHitRate(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  Outcome StepExplain(const RequestContext& context, Store& store, uint32_t* budget_blocks);
  // Reads a body that is exactly one T.
  template <typename T>
  bool ReadWhole(T* value) const {
    return body_.size_bytes() == sizeof(T) && body_.Read(0, value);
  }

  protocol::Verb verb_ = protocol::Verb::kHello;
  uint64_t id_ = 0;
  MessageBody body_;
  Reply reply_;
  std::string why_;  // a refusal's sentence, or the document of Stats

  // Key verbs.
  bool has_keys_ = false;
  protocol::KeysRequest keys_;
  uint32_t group_index_ = kAllGroups;
  size_t keys_offset_bytes_ = 0;
  uint32_t next_ = 0;          // next key, commit entry, abort index or step of a List
  BlockKey last_key_;          // the key before next_
  uint64_t cursor_ = 0;        // of Evict and Reset: not 0 while the same step goes on
  uint64_t seek_end_us_ = 0;   // of all its Seeks
  bool is_sought_ = false;     // the keys of this step
  bool wants_ready_ = false;   // an Acquire without slots that has not begun
  size_t checksums_read_ = 0;  // of Commit

  // Answers as they grow; the reply's arrays point into them.
  AcquireResult acquire_;
  PrefixMatch match_;
  ReserveResult reserve_;
  std::optional<protocol::JoinRequest> join_;  // of Join, once it has begun
  bool is_write_lease_ = false;                // of Join: the answer is in reserve_
  bool has_more_ = false;                      // of Join: a page that others follow
  CommitResult commit_;
  std::vector<protocol::QueriedBlock> queried_;
  protocol::EvictReply evicted_;
  OperatorVerbs::ChildrenGone children_gone_;  // of a dry run
  bool has_reset_ = false;                     // a Reset has begun
  bool is_erasure_told_ = false;
  bool is_through_ = false;  // an Evict or a Reset
  protocol::PinReply pinned_;
  std::optional<protocol::PinTurnReply> turn_;  // of one that asks
  protocol::OpenReply opened_;
  std::vector<protocol::OpenedMember> opened_members_;
  protocol::ListReply list_;
  std::vector<protocol::ListEntry> list_entries_;
  std::vector<protocol::HitRateRow> hit_rate_rows_;
  ExplainResult explained_;

  // Scratch of one step; its capacity stays.
  std::vector<BlockKey> step_keys_;
  std::vector<uint64_t> step_events_;
  std::vector<protocol::CommitEntry> step_entries_;
  std::vector<Checksum> step_checksums_;
  std::vector<uint32_t> step_indexes_;

  // Under way; it fills in the answer of its verb, so it goes first.
  std::variant<std::monostate, MatchOperation, AcquireOperation, PrefetchOperation,
               ReserveOperation, WaitOperation>
      operation_;
};

}  // namespace terrace
